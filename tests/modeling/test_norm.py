"""One norm, two ways to compute it."""

import pytest
import torch

from dvi.modeling.linear import Packing
from dvi.modeling.norm import RmsNorm

EPS = 1e-5


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_every_mode_is_the_same_function_of_each_row(packing, scale):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(96, generator=generator)
    x = scale * torch.randn(40, 96, generator=generator)
    x[7] = 0
    norm = RmsNorm(weight, EPS, packing)
    wide = x.double()
    want = wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    # A few roundings of float32 in each factor.
    torch.testing.assert_close(norm(x).double(), want, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("packing", [Packing.CANONICAL, Packing.INT8])
def test_modes_that_promise_bits_keep_those_of_the_library(packing):
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(5, 96, generator=generator), torch.randn(96, generator=generator)
    want = torch.nn.functional.rms_norm(x, (96,), weight, EPS)
    assert torch.equal(RmsNorm(weight, EPS, packing)(x), want)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_widths_take_the_library(dtype):
    x, weight = torch.randn(5, 96, dtype=dtype), torch.randn(96, dtype=dtype)
    want = torch.nn.functional.rms_norm(x, (96,), weight, EPS)
    assert torch.equal(RmsNorm(weight, EPS, Packing.FAST)(x), want)
