"""One product, three packings."""

from __future__ import annotations

import pytest
import torch

from dvi.modeling.linear import (
    Linear,
    Packing,
    Quantization,
    choose_kernels,
    choose_packing,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize("packing", list(Packing))
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_packing_is_the_same_product(packing: Packing, with_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(70, 48, generator=generator)
    bias = torch.randn(70, generator=generator) if with_bias else None
    linear = Linear(weight, bias, packing)
    for num_rows in (1, 2, 3, 4, 5, 9, 40):
        x = torch.randn(num_rows, 48, generator=generator)
        want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        # 48 products of unit normals in float32: some 1e-6 each.
        torch.testing.assert_close(linear(x).double(), want, atol=5e-5, rtol=0)


def test_float64_stays_plain() -> None:
    assert choose_packing(torch.float64, CPU, deterministic=True) is Packing.PLAIN


def test_mode_decides_packing() -> None:
    fast = choose_packing(torch.float32, CPU, deterministic=False)
    canonical = choose_packing(torch.float32, CPU, deterministic=True)
    assert (fast, canonical) in {
        (Packing.FAST, Packing.CANONICAL),
        (Packing.PLAIN, Packing.PLAIN),
    }


def test_without_a_packed_copy_the_fast_mode_is_plain_and_the_deterministic_one_stays() -> None:
    for deterministic in (False, True):
        kernels = choose_kernels(
            torch.float32,
            CPU,
            quantization=Quantization.NONE,
            deterministic=deterministic,
            packed_copy=False,
        )
        want = choose_packing(torch.float32, CPU, deterministic=True)
        assert kernels.target == kernels.others == (want if deterministic else Packing.PLAIN)


def test_fast_products_of_few_rows_are_plain() -> None:
    if choose_packing(torch.float32, CPU, deterministic=False) is Packing.PLAIN:
        return
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(640, 576, generator=generator)
    linear = Linear(weight, None, Packing.FAST)
    x = torch.randn(3, 576, generator=generator)
    assert torch.equal(linear(x), torch.nn.functional.linear(x, weight))


def test_canonical_bits_of_a_row_do_not_depend_on_the_others() -> None:
    if choose_packing(torch.float32, CPU, deterministic=True) is Packing.PLAIN:
        return
    generator = torch.Generator().manual_seed(3)
    for inputs, outputs in ((576, 960), (576, 3072), (1536, 576)):
        linear = Linear(torch.randn(outputs, inputs, generator=generator), None, Packing.CANONICAL)
        x = torch.randn(40, inputs, generator=generator)
        want = linear(x)
        for num_rows in (1, 2, 5, 9, 33):
            assert torch.equal(linear(x[:num_rows]), want[:num_rows])
            assert torch.equal(linear(x[40 - num_rows :]), want[40 - num_rows :])


def test_weight_stays_readable_and_unchanged() -> None:
    weight = torch.randn(16, 8, generator=torch.Generator().manual_seed(2))
    copy = weight.clone()
    for packing in Packing:
        linear = Linear(weight, None, packing)
        linear(torch.ones(6, 8))
        assert linear.weight is weight
    assert torch.equal(weight, copy)
