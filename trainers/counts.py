"""How often each token came in the newest traffic: what the draft's rows are chosen from.

Owns the counts; does not know how many rows a list has.
Letters: V ids that exist.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dvi.types import Trace

HALF_LIFE_TRACES = 1000  # then a trace counts half: a list follows traffic that drifts


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
