"""One JSON line an arm, appended when the arm is done: a run goes on where it was stopped.

Owns the file and its check of the sources; hits are kept position by position, so that every table
can be made again from the file alone. Does not know tables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dvi.config.home import PACKAGE_DIR, conf_dir

UNUSED = ("audit", "bench", "cli", "demo", "doctor")  # parts of dvi that decide no result
# Of the study: made again each time.
SHOWING = ("choice.py", "main.py", "measures.py", "report.py", "served.py", "tables.py")


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request of the stream."""

    domain: str
    max_tokens: int  # its limit
    hits: str  # a character a position: 1 where the version in service proposes the token
    replaced: str | None  # the same of the version that it replaced
    memory: str  # the same of the memory
    known: str  # 1 where the memory has a match of three tokens or more
    walks: dict[str, str]  # neural, memory and auto at the arm's K, see rounds.letters
    version: int
    num_steps: int
    trained_positions: int


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What one arm showed."""

    arm: str
    setting: str
    seed: int
    overrides: tuple[str, ...]
    stream: str  # kind
    draft_len: int
    seconds: float
    promoted: int
    held: int
    refused: int
    dropped_steps: int
    live: dict[str, dict[str, int]]  # neural, auto
    requests: tuple[RequestRow, ...]


def source_hash(model: str, common: Sequence[str]) -> str:
    """Changes with all that a result may depend on: code, config, target, torch, overrides."""
    digest = hashlib.sha256(json.dumps([model, list(common), torch.__version__]).encode())
    package = PACKAGE_DIR
    files = [
        path
        for path in (
            *(*package.rglob("*.py"), *package.rglob("*.[ch]")),
            *(package.parent / "trainers").rglob("*.py"),
        )
        if path.relative_to(package.parent).parts[1] not in UNUSED
        and (path.parent.name != "study" or path.name not in SHOWING)
    ]
    for path in sorted([*files, *conf_dir().rglob("*.yaml")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class ResultFile:
    """The arms of one output folder."""

    def __init__(self, path: Path, sources: str) -> None:
        self.path = path
        self.sources = sources

    def read(self) -> list[ArmResult]:
        """All arms so far. Raises ValueError if one was run on other sources."""
        if not self.path.is_file():
            return []
        rows: list[dict[str, Any]] = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            rows.append(json.loads(line))
        if any(row["sources"] != self.sources for row in rows):
            raise ValueError(
                f"{self.path} has arms of other sources, model or overrides: remove it, or give "
                "another --out"
            )
        return [_from_row(row) for row in rows]

    def add(self, result: ArmResult) -> None:
        """Append one arm, whole or not at all."""
        line = json.dumps({"sources": self.sources, **asdict(result)})
        before = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        part = self.path.with_suffix(".part")
        part.write_text(before + line + "\n", encoding="utf-8")
        part.replace(self.path)


def _from_row(row: dict[str, Any]) -> ArmResult:
    values = {name: value for name, value in row.items() if name != "sources"}
    return ArmResult(
        **{
            **values,
            "overrides": tuple(row["overrides"]),
            "requests": tuple(RequestRow(**one) for one in row["requests"]),
        }
    )
