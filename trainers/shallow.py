"""What a draft reads of a batch of traces: h_k, recomputed with the frozen shallow layers, or ids.

Owns the trainer's KV cache, used again for every batch: a pass starts at position zero of each row
and sees only what it wrote. Knows neither drafts nor losses.
Letters: B traces, T padded length, N tokens of the ragged pass, H hidden width.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.target import TargetModel
from trainers.batch import Batch


class DraftInputs(Protocol):
    """Computes a draft's inputs; ``target`` says which ids exist and on which device."""

    target: TargetModel
    num_rows: int  # most traces of a batch

    def compute(self, batch: Batch) -> Tensor:
        """[B, T, H], right-padded."""


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


class EmbeddedIds:
    """The rows of a draft model's embedding: it starts from ids and needs nothing of the target."""

    def __init__(self, target: TargetModel, embedding: Tensor, num_rows: int) -> None:
        self.target = target
        self.embedding = embedding  # [V, H]
        self.num_rows = num_rows

    def compute(self, batch: Batch) -> Tensor:
        """[B, T, H], padded at the right with id 0, which causal attention shows to nobody."""
        longest = batch.positions.shape[1]
        padded = [[*window.ids, *[0] * (longest - len(window.ids))] for window in batch.windows]
        return F.embedding(torch.tensor(padded, device=self.embedding.device), self.embedding)
