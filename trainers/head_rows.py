"""Which rows of its head the draft computes: the counts they are chosen from, and both on disk.

Owns the counts and the tensor names; does not know how many rows a list has, nor when it is chosen.
Letters: V ids that exist.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dvi.types import Trace
from trainers.draft import Draft

HALF_LIFE_TRACES = 1000  # then a trace counts half: a list follows traffic that drifts
COUNTS, LIST = "tokens/counts", "vocab/"


class TokenCounts:
    """Decaying counts over prompts and answers. One thread."""

    def __init__(self, num_token_ids: int) -> None:
        self.counts = torch.zeros(num_token_ids, dtype=torch.float64)  # [V]

    def add(self, trace: Trace) -> None:
        """Count one usable trace."""
        self.counts *= 0.5 ** (1 / HALF_LIFE_TRACES)
        ids = torch.tensor((*trace.prompt_ids, *trace.output_ids))
        self.counts.index_add_(0, ids, torch.ones(len(ids), dtype=torch.float64))

    def restore(self, counts: Tensor) -> None:
        """Go back to the ``counts`` of another time."""
        self.counts = counts.clone()


def list_tensors(draft: Draft, tokens: TokenCounts) -> dict[str, Tensor]:
    """What a checkpoint keeps; copies."""
    listed = {} if draft.vocab is None else draft.vocab.tensors()
    named = {LIST + name: tensor.clone() for name, tensor in listed.items()}
    return {COUNTS: tokens.counts.clone(), **named}


def restore_list(tensors: Mapping[str, Tensor], draft: Draft, tokens: TokenCounts) -> None:
    """Go back to a checkpoint; one of a draft with all rows starts a list without counts."""
    if COUNTS in tensors:
        tokens.restore(tensors[COUNTS])
    listed = {n.removeprefix(LIST): t for n, t in tensors.items() if n.startswith(LIST)}
    draft.take_list(listed or None)
