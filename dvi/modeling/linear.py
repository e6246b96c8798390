"""One matrix product: plain, by our own kernels, packed for oneDNN, or in 8 bits.

Owns the choice of kernel by row count; does not know which projection it is.
oneDNN compiles a kernel for each row count of a shape, about half a megabyte and half a
millisecond, and keeps it as long as the process lives: its products are given few row counts.
Letters: n rows, I inputs, O outputs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.int8 import Int8Linear, has_exact_products
from dvi.modeling.spec import ModelRefused
from dvi.native.layers import NativeMatrix, make_native_matrix

PLAIN_MAX_ROWS = 3  # F.linear is faster up to here, packed beyond (measured, fp32, AVX-512)
COMPILED_MIN_ROWS = 2  # a packed product of one row takes another kernel with other bits
COMPILED_STEPS = 8  # row counts that are compiled for between n and 2 n
COMPILED_AT_LOAD = 2 * COMPILED_STEPS  # all counts up to here, so that few rounds wait for one
_compiled_shapes: set[tuple[object, ...]] = set()  # as the kernels, they live with the process
PACK_BATCH_HINT = 8


class Packing(StrEnum):
    """Which kernel a row count takes."""

    PLAIN = "plain"  # F.linear always
    NATIVE = "native"  # our own kernels: bits do not depend on n
    FAST = "fast"  # F.linear for few rows, packed beyond
    CANONICAL = "canonical"  # packed always, at least two rows: bits do not depend on n
    INT8 = "int8"  # 8-bit weights, exact integer products: bits do not depend on n


class Quantization(StrEnum):
    """How the target's matrices are kept; the words of ``model.quantization``."""

    NONE = "none"
    INT8 = "int8"


@dataclass(frozen=True, slots=True)
class Kernels:
    """The packings of one model."""

    target: Packing  # its layers and head
    others: Packing  # a draft's matrices beside it
    deterministic: bool

    @property
    def needs_canonical_plans(self) -> bool:
        """Whether equal bits have to be had from torch's attention; our own always has them."""
        return self.deterministic and self.others is not Packing.NATIVE


class Matrix(Protocol):
    """x W^T + b, ready to run."""

    bias: Tensor | None  # [O]
    native: NativeMatrix | None  # by our own kernels, where they can

    @property
    def num_bytes(self) -> int:
        """Bytes that one product reads of the weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """[n, I] -> [n, O], new storage."""

    def plain(self) -> Tensor:
        """W [O, I] as the product sees it; may be the storage in use: read only."""


def make_matrix(weight: Tensor, bias: Tensor | None, packing: Packing) -> Matrix:
    """The product of ``weight`` [O, I] by the kernels of ``packing``."""
    if packing is Packing.INT8:
        return Int8Linear(weight, bias)
    return Linear(weight, bias, packing)


class Linear:
    """Floats. ``weight`` stays readable; products of several rows may use a packed copy."""

    def __init__(self, weight: Tensor, bias: Tensor | None, packing: Packing) -> None:
        self.weight = weight  # [O, I]
        self.bias = bias  # [O]
        self._columns = weight.t()
        self.native = make_native_matrix(weight, bias) if packing is Packing.NATIVE else None
        is_packed = packing in (Packing.FAST, Packing.CANONICAL)
        self.packed = _pack(weight) if is_packed else None
        self.plain_max_rows = _plain_max_rows(weight, packing)
        if self.packed is not None:
            self._compile_few_rows()

    @property
    def num_bytes(self) -> int:
        """See Matrix; a packed copy has the same size."""
        return self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[n, I] -> [n, O]."""
        if self.native is not None:
            assert not x.requires_grad
            return self.native(x)
        num_rows = x.shape[0]
        if num_rows <= self.plain_max_rows:
            return self._product(x)
        added = compiled_rows(num_rows) - num_rows
        if added == 0:
            return self._compiled(x)
        return self._compiled(F.pad(x, (0, 0, 0, added)))[:num_rows]

    def plain(self) -> Tensor:
        """The weight itself."""
        return self.weight

    def resident(self) -> Linear:
        """The same product on a weight of its own, which ``fill`` may change."""
        assert (self.native, self.packed) == (None, None), "another copy would stay as it was"
        return Linear(self.weight.clone(), self.bias, Packing.PLAIN)

    def fill(self, source: Linear) -> None:
        """Take over another weight of this shape, in place; the bias stays."""
        self.weight.copy_(source.weight)

    def _compile_few_rows(self) -> None:
        shape = (*self.weight.shape, self.weight.dtype, self.bias is None)
        if shape in _compiled_shapes:
            return
        _compiled_shapes.add(shape)
        for num_rows in range(1, COMPILED_AT_LOAD + 1):
            self(self.weight.new_zeros(num_rows, self.weight.shape[1]))

    def _product(self, x: Tensor) -> Tensor:
        """F.linear without its dispatch, which is felt at one row."""
        if self.bias is None:
            return torch.mm(x, self._columns)
        return torch.addmm(self.bias, x, self._columns)

    def _compiled(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return self._product(x)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def compiled_rows(num_rows: int) -> int:
    """The row count that a product of ``num_rows`` is computed with, less than an eighth more."""
    step = max(1, (1 << (num_rows - 1).bit_length()) // (2 * COMPILED_STEPS))
    return max(COMPILED_MIN_ROWS, -(-num_rows // step) * step)


def _plain_max_rows(weight: Tensor, packing: Packing) -> int:
    """Up to how many rows F.linear takes, which compiles nothing for floats of full width."""
    if packing is Packing.FAST:
        return PLAIN_MAX_ROWS
    full = weight.device.type != "cpu" or weight.dtype in (torch.float32, torch.float64)
    return sys.maxsize if packing in (Packing.PLAIN, Packing.NATIVE) and full else 0


def choose_kernels(
    dtype: torch.dtype,
    device: torch.device,
    *,
    quantization: Quantization,
    deterministic: bool,
    packed_copy: bool = True,
    native: bool = False,
) -> Kernels:
    """The packings a model takes here; without ``packed_copy`` the fast mode stays plain.

    ``native``: our own kernels run this model (``native.library.fits``).

    Raises ModelRefused for 8 bits where the product of bytes is not exact.
    """
    floats = choose_packing(dtype, device, deterministic=deterministic)
    if native and device.type == "cpu" and dtype == torch.float32:
        floats = Packing.NATIVE
    if floats is Packing.FAST and not packed_copy:
        floats = Packing.PLAIN
    if quantization is Quantization.NONE:
        return Kernels(floats, floats, deterministic)
    if device.type != "cpu":
        raise ModelRefused("model.quantization=int8 runs on a CPU; use none or model.device=cpu")
    if not has_exact_products():
        raise ModelRefused(
            "model.quantization=int8: the byte products of this processor are not exact; use none"
        )
    return Kernels(Packing.INT8, floats, deterministic)


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
