"""Which rows of the head a draft computes: a list of fixed length, chosen from counts of traffic.

Owns the list, its order and its file beside an adapter; does not know where counts come from. The
adapter always holds the LoRA of all rows, so list and adapter change independently.
Letters: V ids that exist, R rows of the list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.base import AdapterRefused
from dvi.modeling.spec import ModelSpec
from dvi.registry.version import VOCAB_FILE

RANKED, VERSION = "ranked", "version"  # tensor names in the file


@dataclass(frozen=True, slots=True)
class DraftVocab:
    """One version of the list."""

    ranked: Tensor  # [R] int64, distinct, most frequent first
    ids: Tensor  # [R], the same ids ascending: the order of the head's rows
    version: int  # of the list; 0 is the list without any counts

    def tensors(self) -> dict[str, Tensor]:
        """What the file holds."""
        return {RANKED: self.ranked.contiguous(), VERSION: torch.tensor([self.version])}

    def save(self, folder: Path) -> None:
        """Write the list beside an adapter's files."""
        save_file(self.tensors(), folder / VOCAB_FILE, metadata={"format": "pt"})


def trimmed_size(config: DrafterConfig, spec: ModelSpec) -> int | None:
    """R, or None where the draft's head computes every row."""
    size = config.draft_vocab_size
    return None if size is None or size >= spec.num_token_ids else size


def ranked_vocab(counts: Tensor, size: int, version: int) -> DraftVocab:
    """The ``size`` ids of largest count [V], the lower id on a tie.

    Ids of a BPE vocabulary are merges in order of frequency, so that low ids are the best guess
    where nothing was counted.
    """
    ranked = torch.sort(counts, descending=True, stable=True).indices[:size]
    return DraftVocab(ranked, ranked.sort().values, version)


def vocab_of(
    stored: Mapping[str, Tensor] | None, size: int | None, spec: ModelSpec
) -> DraftVocab | None:
    """The list that ``stored`` tensors give, cut or filled to ``size`` rows; None: all rows.

    A longer list gives its most frequent ids, a shorter one or none is filled with the lowest ids.
    Raises AdapterRefused for a list with ids that do not exist or come twice.
    """
    if size is None:
        return None
    if stored is None:
        return ranked_vocab(torch.zeros(spec.num_token_ids), size, 0)
    ranked, version = _checked(stored, spec)
    counts = torch.zeros(spec.num_token_ids)
    counts[ranked] = torch.arange(len(ranked), 0, -1, dtype=counts.dtype)
    return ranked_vocab(counts, size, version)


def _checked(stored: Mapping[str, Tensor], spec: ModelSpec) -> tuple[Tensor, int]:
    """Ids, most frequent first, and the version of a stored list."""
    ranked, version = stored.get(RANKED), stored.get(VERSION)
    if ranked is None or version is None or ranked.dim() != 1 or version.numel() != 1:
        raise AdapterRefused(f"{VOCAB_FILE} holds no list of ids with a version")
    ids = ranked.long()
    in_range = bool(((ids >= 0) & (ids < spec.num_token_ids)).all())
    twice = bool((ids.sort().values.diff() == 0).any())
    if ranked.is_floating_point() or not in_range or twice:
        raise AdapterRefused(
            f"{VOCAB_FILE}: ids must be distinct and lie in 0..{spec.num_token_ids - 1}"
        )
    return ids, int(version)
