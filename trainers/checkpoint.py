"""The trainer's state in one file: safetensors, with everything that is no tensor as JSON inside.

Owns the format and its atomicity; does not know what the numbers mean. Loading runs no code. The
random state needs no tensor: every random choice is a function of seed and counters (memory.py).

Files are numbered; the newest two stay. A torn or damaged newest one is passed over for the one
before it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dvi.config.files import PART_PREFIX, replace_file
from dvi.replay import RowKey
from trainers.intake import IntakeState
from trainers.memory import MemoryState
from trainers.strata import StrataState

FORMAT_VERSION = 1
KEPT_FILES = 2
PATTERN = "checkpoint-*.safetensors"


class CheckpointRefused(ValueError):
    """A whole checkpoint that belongs to something else; the message is one line."""


class Damaged(ValueError):
    """A file that is not a whole checkpoint."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a checkpoint is only valid for."""

    base_fingerprint: str
    drafter: dict[str, Any]  # kind, layers, ranks and scales, JSON-able


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """One version that was made from this training: written before the version exists."""

    step: int
    parent: int
    is_promoted: bool  # the gate's decision
    version: int | None  # None until the registry gave a number


@dataclass(frozen=True, slots=True)
class Counters:
    """Numbers that only grow; a restart goes on from them."""

    steps: int = 0  # optimizer steps
    dropped_steps: int = 0  # non-finite loss or gradient
    unusable_rows: int = 0
    promoted: int = 0
    held: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One moment of the training, between two verbs of the loop."""

    identity: Identity
    training_id: int  # of the run, in the manifests of its versions
    tensors: dict[str, Tensor]  # trainable values and optimizer moments, CPU
    counters: Counters
    baseline: float  # moving reward baseline of the policy gradient
    debt_steps: float  # paid for by arrivals, not yet done
    gated_step: int  # step of the last decision
    intake: IntakeState
    root_version: int  # version whose values the first step started from
    lineage: tuple[LineageEntry, ...]


def free_to_write() -> None:
    """The check where nobody else could be writing."""


class CheckpointStore:
    """Numbered checkpoint files of one folder; one writer (the trainer's lock sees to it)."""

    def __init__(self, folder: Path, may_write: Callable[[], None] = free_to_write) -> None:
        self.folder = folder
        self.may_write = may_write  # raises where another machine may be writing

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write a new file, complete or absent, then drop all but the newest two."""
        self.may_write()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files = self._files()
        number = self._number(files[-1]) + 1 if files else 1
        path = self.folder / f"checkpoint-{number:08d}.safetensors"
        replace_file(path, encode(checkpoint), durable=True)
        killed = self.folder.glob(f"{PART_PREFIX}{PATTERN}*")  # what was being written then
        for old in (*files[: -(KEPT_FILES - 1)], *killed):
            old.unlink()
        return path

    def load(self) -> tuple[Checkpoint | None, list[Path]]:
        """The newest whole checkpoint, if any, and the damaged files that were passed over."""
        damaged: list[Path] = []
        for path in reversed(self._files()):
            try:
                return decode(path), damaged
            except Damaged:
                damaged.append(path)
        return None, damaged

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob(PATTERN), key=self._number)

    @staticmethod
    def _number(path: Path) -> int:
        digits = path.name.removeprefix("checkpoint-").removesuffix(".safetensors")
        return int(digits) if digits.isdigit() else 0


class CheckpointReader(CheckpointStore):
    """What a process has that does not write: another process of the training saves."""

    def save(self, checkpoint: Checkpoint) -> Path:  # noqa: ARG002
        """Nothing; returns the folder."""
        return self.folder


def check_identity(checkpoint: Checkpoint, expected: Identity) -> None:
    """Raise CheckpointRefused where the checkpoint is of another base or drafter."""
    found = checkpoint.identity
    for name in ("base_fingerprint", "drafter"):
        theirs, ours = asdict(found)[name], asdict(expected)[name]
        if theirs != ours:
            raise CheckpointRefused(
                f"the trainer's checkpoint was made with {name} {theirs}, this config has {ours}: "
                "use the state_dir that belongs to it, or move its folder trainer/ away"
            )


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes of a file; its digest covers tensors and JSON."""
    tensors = checkpoint.tensors
    plain = asdict(replace(checkpoint, tensors={}))
    del plain["tensors"]
    text = json.dumps({"format": FORMAT_VERSION, **plain}, sort_keys=True)
    data: bytes = save(tensors, {"state": text, "digest": digest(tensors, text)})
    return data


def decode(path: Path) -> Checkpoint:
    """Read a file. Raises Damaged when it is torn, altered or of another format."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{path}: {error}") from error
    text = metadata.get("state", "")
    if not text or metadata.get("digest") != digest(tensors, text):
        raise Damaged(f"{path}: digest does not match")
    plain = json.loads(text)
    if plain.pop("format") != FORMAT_VERSION:
        raise Damaged(f"{path}: format is not {FORMAT_VERSION}")
    return _from_plain(tensors, plain)


def digest(tensors: Mapping[str, Tensor], text: str) -> str:
    """A checksum of everything in the file, against torn and altered bytes."""
    total = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(tensors[name].contiguous().numpy().data)
    return total.hexdigest()


def _from_plain(tensors: dict[str, Tensor], plain: dict[str, Any]) -> Checkpoint:
    intake = plain["intake"]
    memory = intake["memory"]
    return Checkpoint(
        identity=Identity(**plain["identity"]),
        training_id=plain["training_id"],
        tensors=tensors,
        counters=Counters(**plain["counters"]),
        baseline=plain["baseline"],
        debt_steps=plain["debt_steps"],
        gated_step=plain["gated_step"],
        intake=IntakeState(
            cursor=intake["cursor"],
            holdout=_keys(intake["holdout"]),
            memory=MemoryState(
                newest=_keys(memory["newest"]),
                reservoir=_keys(memory["reservoir"]),
                num_spilled=memory["num_spilled"],
                strata=_strata(memory.get("strata", {})),
            ),
            num_admitted=intake["num_admitted"],
            num_missing=intake["num_missing"],
        ),
        root_version=plain["root_version"],
        lineage=tuple(LineageEntry(**entry) for entry in plain["lineage"]),
    )


def _strata(plain: dict[str, list[Any]]) -> StrataState:
    return StrataState(
        labels=tuple((RowKey(*key), label) for key, label in plain.get("labels", ())),
        counts=tuple(map(tuple, plain.get("counts", ()))),
        seen=tuple(map(tuple, plain.get("seen", ()))),
    )


def _keys(pairs: list[list[Any]]) -> tuple[RowKey, ...]:
    return tuple(RowKey(*pair) for pair in pairs)
