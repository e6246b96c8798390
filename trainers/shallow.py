"""h_k of a batch of traces, recomputed with the frozen shallow layers.

Owns the trainer's KV cache, used again for every batch: a pass starts at position zero of each row
and sees only what it wrote. Knows neither drafts nor losses.
Letters: B traces, T padded length, N tokens of the ragged pass, H hidden width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.target import TargetModel
from trainers.batch import Batch


class ShallowStates:
    """Runs the target's shallow stack over batches of at most ``num_rows`` traces."""

    def __init__(self, target: TargetModel, num_rows: int, max_seq_len: int) -> None:
        self.target = target
        self.num_rows = num_rows
        self.max_seq_len = max_seq_len
        self.cache: KvCache | None = None

    @torch.no_grad()
    def compute(self, batch: Batch) -> Tensor:
        """[B, T, H], right-padded with zeros."""
        if self.cache is None:
            self.cache = self.target.new_cache(
                self.target.exit_layer, self.num_rows, self.max_seq_len
            )
        plan = self.target.plan(batch.segments)
        flat = self.target.shallow(plan, self.cache)  # [N, H]
        num_traces, longest = batch.positions.shape
        is_real = torch.arange(longest, device=flat.device) < batch.lengths[:, None]  # [B, T]
        padded = flat.new_zeros(num_traces, longest, flat.shape[1])
        padded[is_real] = flat  # row-major, as the segments are
        return padded
