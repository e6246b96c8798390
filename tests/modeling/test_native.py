"""Our own kernels against torch: the same numbers, bits that depend on a position's past alone."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dvi.modeling.int8 import Int8Linear
from dvi.modeling.layer import run_layer, write_kv
from dvi.modeling.linear import Linear, Packing, Quantization
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.native.find import can_run, compiled_files
from dvi.native.layers import make_native_matrix
from dvi.native.library import library
from tests.modeling.helpers import (
    decode_in_widths,
    forward,
    random_ids,
    whole_cache,
    without_kernels,
)
from tests.rigs import build_target

needs_kernels = pytest.mark.skipif(library() is None, reason="no compiled kernels for this machine")
SIZES = {"hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 1, "vocab": 70}
BYTE_SIZES = {**SIZES, "intermediate": 128, "quantization": Quantization.INT8}
VARIANTS: list[dict[str, object]] = [
    SIZES,
    {**SIZES, "kv_heads": 4, "qk_norm": True},
    {**SIZES, "hidden": 80, "heads": 5, "qkv_bias": True},  # five query heads of one key head
    {**SIZES, "hidden": 192, "heads": 2},  # heads of 96: one register of four and two single ones
    BYTE_SIZES,
]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(**sizes: object) -> tuple[TargetModel, TargetModel]:
    """The same weights by our kernels and by torch."""
    ours = build_target(dtype=torch.float32, **sizes)  # type: ignore[arg-type]
    with without_kernels():
        theirs = build_target(dtype=torch.float32, **sizes)  # type: ignore[arg-type]
    assert ours.layer(0).native is not None
    assert theirs.layer(0).native is None
    return ours, theirs


def test_kernels_are_there_where_they_can_be_built_and_run() -> None:
    if platform.machine() == "x86_64" and sys.platform == "linux" and shutil.which("gcc"):
        assert compiled_files(), "python setup.py build_ext --inplace"
    if compiled_files() and can_run() and os.environ.get("DVI_KERNELS") != "torch":
        assert library() is not None


@needs_kernels
@pytest.mark.parametrize("outputs", [4, 5, 7, 70, 200])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_is_torchs_in_every_number_of_rows(outputs: int, with_bias: bool) -> None:
    for inputs in (16, 48, 1040):
        weight, bias = normal(1, outputs, inputs), normal(2, outputs) if with_bias else None
        product = make_native_matrix(weight, bias)
        assert product is not None
        for num_rows in (1, 2, 5, 6, 7, 11, 13, 24, 25, 60, 300):
            x = normal(num_rows, num_rows, inputs)
            want = x.double() @ weight.double().T + (0 if bias is None else bias.double())
            # sums of that many products of unit normals in float32
            torch.testing.assert_close(product(x).double(), want, atol=2e-6 * inputs, rtol=0)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_of_a_product_depend_on_neither_rows_nor_threads(threads: int) -> None:
    product = Linear(normal(1, 203, 576), None, Packing.NATIVE)
    bytes_product = Int8Linear(normal(1, 203, 576), None)
    x = normal(2, 300, 576)
    before = torch.get_num_threads()
    for one in (product, bytes_product):
        want = one(x)
        torch.set_num_threads(threads)
        for num_rows in (1, 2, 5, 9, 24, 25, 77):
            assert torch.equal(one(x[:num_rows]), want[:num_rows])
            assert torch.equal(one(x[300 - num_rows :]), want[300 - num_rows :])
        torch.set_num_threads(before)


@needs_kernels
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_product_of_bytes_has_the_bits_of_torchs(
    with_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias = normal(1, 70, 320), normal(2, 70) if with_bias else None
    ours = Int8Linear(weight, bias)
    monkeypatch.setattr("dvi.modeling.int8.make_native_matrix", lambda *args: None)
    theirs = Int8Linear(weight, bias)
    assert ours.native is not None
    assert theirs.native is None
    for num_rows in (1, 3, 7, 30):
        x = normal(num_rows, num_rows, 320) * torch.logspace(-4, 4, num_rows)[:, None]
        x[0, 5] = 1e4  # one large value: the others keep few bits
        assert torch.equal(ours(x), theirs(x))
    x[1] = 0
    x[2, 3] = float("nan")
    assert torch.equal(ours(x)[[0, 1, 3]], theirs(x)[[0, 1, 3]])
    assert ours(x)[2].isnan().all()


PASSES = [
    [Segment(0, 0, (7,) * 70), Segment(1, 0, (3, 1, 4)), Segment(3, 0, (5,) * 20)],
    [Segment(0, 70, (9,)), Segment(2, 0, (1,))],
    [Segment(0, 71, (2, 6, 5)), Segment(1, 3, (8,)), Segment(3, 20, tuple(range(9)))],
]


@needs_kernels
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_layers_are_torchs(variant: int) -> None:
    ours, theirs = both(**VARIANTS[variant])
    caches = [whole_cache(model, rows=4) for model in (ours, theirs)]
    # A step of 15-bit activations is 1e-4 of the largest; floats are another order of sums.
    bound = 2e-2 if ours.is_quantized else 1e-4
    for segments in PASSES:
        got, want = (
            forward(model, cache, segments)
            for model, cache in zip((ours, theirs), caches, strict=True)
        )
        torch.testing.assert_close(got, want, atol=bound, rtol=0)
    torch.testing.assert_close(caches[0].data, caches[1].data, atol=bound, rtol=0)
    assert torch.count_nonzero(caches[0].data) == torch.count_nonzero(caches[1].data) > 0


@needs_kernels
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
def test_bits_of_a_position_depend_on_its_past_alone(variant: int) -> None:
    model = build_target(dtype=torch.float32, **VARIANTS[variant])  # type: ignore[arg-type]
    ids = random_ids(150, 64)
    want = decode_in_widths(model, whole_cache(model), 0, ids, [1] * 150)
    stale = whole_cache(model)
    stale.data.normal_()  # what a row held before must not matter
    for cache, row, widths in (
        (whole_cache(model), 2, [150]),
        (stale, 1, [5] * 30),
        (whole_cache(model), 0, [70, 1, 9, 65, 5]),
    ):
        assert torch.equal(decode_in_widths(model, cache, row, ids, widths), want)
    cache = whole_cache(model)
    forward(model, cache, [Segment(1, 0, ids[:100]), Segment(0, 0, ids[:31])])
    together = forward(model, cache, [Segment(0, 31, ids[31:40]), Segment(1, 100, ids[100:103])])
    assert torch.equal(together, torch.cat((want[31:40], want[100:103])))


@needs_kernels
def test_keys_and_values_alone_are_those_of_the_whole_layer() -> None:
    model = build_target(dtype=torch.float32, qk_norm=True, **SIZES)  # type: ignore[arg-type]
    plan = model.plan([Segment(1, 3, (4, 5, 6, 7)), Segment(0, 0, (9,))])
    hidden = normal(2, 5, 64)
    ran, wrote = whole_cache(model), model.new_cache(1, 3, 200)
    run_layer(model.layer(2), hidden, plan, ran, 2)
    write_kv(model.layer(2), hidden, plan, wrote, 0)
    assert torch.equal(ran.data[2], wrote.data[0])
    assert torch.count_nonzero(wrote.data) > 0
    assert torch.count_nonzero(ran.data[:2]) == torch.count_nonzero(ran.data[3:]) == 0


@needs_kernels
def test_no_number_reaches_another_row() -> None:
    model = build_target(dtype=torch.float32, **SIZES)  # type: ignore[arg-type]
    plan = model.plan([Segment(0, 0, (1, 2, 3)), Segment(1, 0, (4,))])
    hidden = normal(3, 4, 64)
    clean = run_layer(model.layer(0), hidden, plan, whole_cache(model), 0)
    hidden[1, 7] = float("nan")
    got = run_layer(model.layer(0), hidden, plan, whole_cache(model), 0)
    assert torch.equal(got[[0, 3]], clean[[0, 3]])
    assert got[1:3].isnan().all()  # the position itself, and the one that reads its keys


@needs_kernels
@pytest.mark.parametrize(
    ("changes", "packing"),
    [
        ({"heads": 8}, Packing.FAST),  # heads of 8
        ({"intermediate": 100}, Packing.FAST),
        ({**BYTE_SIZES, "intermediate": 96}, Packing.FAST),
        ({}, Packing.NATIVE),
        (BYTE_SIZES, Packing.NATIVE),
    ],
)
def test_models_of_other_sizes_are_left_to_torch(
    changes: dict[str, object], packing: Packing
) -> None:
    model = build_target(dtype=torch.float32, **{**SIZES, **changes})  # type: ignore[arg-type]
    assert model.packing is packing
    assert (model.layer(0).native is not None) == (packing is Packing.NATIVE)


@needs_kernels
def test_an_environment_variable_leaves_the_kernels_unused() -> None:
    code = "from dvi.native.library import library; print(library())"
    for value, want in (("torch", True), ("", False)):
        env = {**os.environ, "DVI_KERNELS": value}
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, env=env, capture_output=True, text=True, check=True)
        assert (done.stdout.strip() == "None") is want
        assert done.stderr == ""


def test_what_a_processor_says_decides(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    flags = "fpu avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
    cases: Sequence[tuple[str, bool]] = [
        (f"processor\t: 0\nflags\t\t: {flags}\n", True),
        (f"flags\t\t: {flags.replace('avx512_vnni', 'avx_vnni')}\n", False),
        ("Features\t: fp asimd\n", False),
        ("", False),
    ]
    for text, want in cases:
        cpuinfo.write_text(text)
        assert can_run(cpuinfo) is want
    assert not can_run(tmp_path / "missing")
