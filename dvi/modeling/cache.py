"""Preallocated keys and values.

Owns the storage only; does not know how long a row is: whoever owns a row knows its length, and
rolling back is lowering that number. Later writes overwrite.
"""

from __future__ import annotations

import torch
from torch import Tensor

TILE = 512  # key tile of torch's CPU attention; canonical key lengths are multiples of it


class KvCache:
    """Keys and values [layers, rows, kv_heads, capacity, head_dim], zero-filled.

    Zeros, not garbage: masked positions enter attention with weight 0, and 0 * NaN is NaN.
    """

    def __init__(self, data: Tensor) -> None:
        self.data = data  # [layers, 2, rows, kv_heads, capacity, head_dim]
        self.keys = data[:, 0]  # [layers, rows, kv_heads, capacity, head_dim]
        self.values = data[:, 1]
        self.layer_slots = [layer.view(-1, data.shape[-1]) for layer in data]

    @property
    def num_rows(self) -> int:
        """Requests that fit."""
        return self.data.shape[2]

    @property
    def capacity(self) -> int:
        """Positions of a row, a multiple of 512."""
        return self.data.shape[4]

    @property
    def place(self) -> int:
        """Address of the storage: what was captured on it reads and writes it there."""
        return self.data.data_ptr()

    def copy_span(self, source_row: int, row: int, start: int, end: int) -> None:
        """Give ``row`` what ``source_row`` holds at positions [start, end), bit for bit."""
        assert source_row != row
        self.data[:, :, row, :, start:end] = self.data[:, :, source_row, :, start:end]


def new_kv_cache(
    shape: tuple[int, int, int, int],  # (layers, rows, kv_heads, head_dim)
    max_len: int,
    dtype: torch.dtype,
    device: torch.device,
) -> KvCache:
    """A cache whose rows hold ``max_len`` positions, in whole tiles."""
    layers, rows, kv_heads, head_dim = shape
    capacity = -(-max_len // TILE) * TILE
    data = torch.zeros(layers, 2, rows, kv_heads, capacity, head_dim, dtype=dtype, device=device)
    return KvCache(data)
