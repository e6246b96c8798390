"""One matrix product, plain or packed for oneDNN.

Owns the choice of kernel by row count; does not know which projection it is.
Letters: n rows, I inputs, O outputs.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

PLAIN_MAX_ROWS = 3  # F.linear is faster up to here, packed beyond (measured, fp32, AVX-512)
PACKED_MIN_ROWS = 2  # a packed product of one row takes another kernel with other bits
PACK_BATCH_HINT = 8


class Packing(StrEnum):
    """Which kernel a row count takes."""

    PLAIN = "plain"  # F.linear always
    FAST = "fast"  # F.linear for few rows, packed beyond
    CANONICAL = "canonical"  # packed always, at least two rows: bits do not depend on n


class Linear:
    """x W^T + b. ``weight`` stays readable; products of several rows may use a packed copy."""

    def __init__(self, weight: Tensor, bias: Tensor | None, packing: Packing) -> None:
        self.weight = weight  # [O, I]
        self.bias = bias  # [O]
        self.packed = None if packing is Packing.PLAIN else _pack(weight)
        self.plain_max_rows = PLAIN_MAX_ROWS if packing is Packing.FAST else 0

    def __call__(self, x: Tensor) -> Tensor:
        """[n, I] -> [n, O]."""
        num_rows = x.shape[0]
        if self.packed is None or num_rows <= self.plain_max_rows:
            return F.linear(x, self.weight, self.bias)
        if num_rows < PACKED_MIN_ROWS:
            return self._packed(x.expand(PACKED_MIN_ROWS, -1).contiguous())[:num_rows]
        return self._packed(x)

    def _packed(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def choose_packing(dtype: torch.dtype, device: torch.device, *, deterministic: bool) -> Packing:
    """The packing a model takes here; plain where torch or the processor has no packed kernel."""
    if device.type != "cpu" or not _can_pack(dtype):
        return Packing.PLAIN
    return Packing.CANONICAL if deterministic else Packing.FAST


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    if not (torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_BATCH_HINT)
    return packed
