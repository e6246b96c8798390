"""Weights in 8 bits, products in exact integers.

Owns quantization and the integer product; does not know which projection it is.

A weight is one byte and a scale for its row. A row of activations becomes whole numbers in
[-16256, 16256] and is multiplied as two rows of bytes, x = scale * (128 * high + low), so that the
activations keep 15 bits and the error is that of the weights alone. Sums of integers are exact:
the bits of an output do not depend on the number of rows, their order, threads or the processor.
Letters: n rows, I inputs, O outputs.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from dvi.native.layers import make_native_matrix

WEIGHT_LIMIT = 127
DIGIT = 128
ACTIVATION_LIMIT = WEIGHT_LIMIT * DIGIT  # high digit in [-127, 127], low digit in [-64, 64]
MAX_INPUTS = (2**31 - 1) // WEIGHT_LIMIT**2  # more could overflow the 32-bit sums
SMALLEST = 1e-30  # scale of a row of zeros in a weight


class Int8Linear:
    """x W^T + b for an 8-bit W; answers in the dtype of x."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        assert weight.shape[1] <= MAX_INPUTS
        self.dtype = weight.dtype
        self.bias = bias  # [O]
        self.quantized, self.scales = quantize(weight)  # [O, I] int8, [O]
        self._columns = self.quantized.t()
        self.native = make_native_matrix(self.quantized, bias, self.scales)

    @property
    def num_bytes(self) -> int:
        """See Matrix."""
        return self.quantized.nbytes + self.scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[n, I] -> [n, O]."""
        num_rows = x.shape[0]
        if self.native is not None and x.dtype == torch.float32:
            return self.native(x)
        wide = x.to(self.scales.dtype)
        scale = wide.abs().amax(1, keepdim=True).mul_(1 / ACTIVATION_LIMIT)  # [n, 1]
        low = (wide / scale).round_()  # a row of zeros: any bytes, times scale 0 at the end
        high = (low * (1 / DIGIT)).round_()
        low.sub_(high, alpha=DIGIT)
        digits = torch.cat((high, low)).to(torch.int8)  # [2n, I]
        sums = torch._int_mm(digits, self._columns).to(wide.dtype)  # [2n, O]
        out = sums[num_rows:].add_(sums[:num_rows], alpha=DIGIT).mul_(scale).mul_(self.scales)
        if self.bias is not None:
            out.add_(self.bias)
        return out.to(x.dtype)

    def plain(self) -> Tensor:
        """[O, I], the matrix that the bytes stand for, in fresh storage."""
        return (self.quantized * self.scales[:, None]).to(self.dtype)


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[O, I] -> bytes [O, I] and scales [O], float32 or wider: the largest of a row is 127."""
    wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
    scales = wide.abs().amax(1).div_(WEIGHT_LIMIT).clamp_min_(SMALLEST)
    return (wide / scales[:, None]).round_().to(torch.int8), scales


@cache
def has_exact_products() -> bool:
    """Whether this processor's product of bytes is exact at its extremes.

    Some add pairs of products in 16 bits, which saturates.
    """
    weight = torch.full((16, 512), -WEIGHT_LIMIT, dtype=torch.int8)
    weight[::2] = WEIGHT_LIMIT
    for num_rows in (2, 10, 64):
        digits = torch.full((num_rows, 512), WEIGHT_LIMIT, dtype=torch.int8)
        digits[1::2] = -WEIGHT_LIMIT
        if not torch.equal(
            torch._int_mm(digits, weight.t()).long(), digits.long() @ weight.t().long()
        ):
            return False
    return True
