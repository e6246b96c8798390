"""One product, three packings."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dvi.modeling.linear import (
    Linear,
    Packing,
    Quantization,
    choose_kernels,
    choose_packing,
    compiled_rows,
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


def test_few_row_counts_are_compiled_and_little_is_computed_in_vain() -> None:
    for num_rows in range(1, 4097):
        compiled = compiled_rows(num_rows)
        assert num_rows <= compiled <= max(2, num_rows * 9 / 8)
    assert [compiled_rows(n) for n in range(2, 17)] == list(range(2, 17))
    assert len({compiled_rows(n) for n in range(2, 513)}) == 15 + 8 * 5


GROWTH = """
import sys, torch
from dvi.modeling.linear import Linear, Packing
torch.set_num_threads(1)
dtype = getattr(torch, sys.argv[1])
linear = Linear(torch.zeros(256, 128, dtype=dtype), None, Packing(sys.argv[2]))
x = torch.zeros(400, 128, dtype=dtype)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
with torch.no_grad():
    linear(x)
    before = resident()
    for num_rows in range(1, 400):
        linear(x[:num_rows])
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize(
    ("dtype", "packing"),
    [("float32", "plain"), ("float32", "fast"), ("float32", "canonical"), ("bfloat16", "plain")],
)
def test_kernels_of_all_row_counts_fit_in_little_memory(dtype: str, packing: str) -> None:
    run = [sys.executable, "-c", GROWTH, dtype, packing]
    grown = int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    # 50 row counts of up to .7 MB each; one kernel for each of the 400 took 100 MB and more.
    assert grown < 50e6, grown
