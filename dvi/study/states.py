"""h_k of recorded traces, computed once for all arms of one exit layer.

Owns the cache in memory; a row is some 0.5 MB. Letters as in trainers/shallow.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dvi.modeling.target import TargetModel
from trainers.batch import Batch
from trainers.shallow import ShallowStates


class CachedStates(ShallowStates):
    """The same states: those of a whole trace depend on its tokens alone.

    Traces of one request id must have the same tokens.
    """

    def __init__(self, target: TargetModel, num_rows: int, max_seq_len: int) -> None:
        super().__init__(target, num_rows, max_seq_len)
        self.known: dict[str, Tensor] = {}  # request id -> [T, H]

    @torch.no_grad()
    def compute(self, batch: Batch) -> Tensor:
        """See ShallowStates."""
        names = [trace.request_id for trace in batch.traces]
        if not all(name in self.known for name in names):
            computed = super().compute(batch)
            for row, name, window in zip(computed, names, batch.windows, strict=True):
                assert window.is_whole
                self.known.setdefault(name, row[: len(window.ids)].clone())
        rows = [self.known[name] for name in names]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
