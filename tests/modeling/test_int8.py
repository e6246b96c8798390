"""8-bit weights: what is stored, what is computed exactly, and the target made of it."""

from __future__ import annotations

import operator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dvi.config import ModelConfig
from dvi.modeling import linear
from dvi.modeling.int8 import ACTIVATION_LIMIT, Int8Linear, has_exact_products, quantize
from dvi.modeling.layer import LayerWeights
from dvi.modeling.linear import Packing, Quantization, choose_kernels
from dvi.modeling.loading import load_target
from dvi.modeling.plan import Segment
from dvi.modeling.selftest import self_test
from dvi.modeling.spec import ModelRefused
from dvi.modeling.target import TargetModel, TargetWeights, make_target
from tests.modeling.helpers import forward, random_ids, whole_cache
from tests.rigs import build_target, make_model_folder

CPU = torch.device("cpu")


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def int8_target(**changes: object) -> TargetModel:
    return build_target(quantization=Quantization.INT8, **changes)  # type: ignore[arg-type]


def test_a_weight_is_within_half_a_step_and_the_largest_of_a_row_is_127() -> None:
    weight = normal(0, 20, 48) * torch.logspace(-3, 3, 20)[:, None]
    quantized, scales = quantize(weight)
    steps = weight / scales[:, None]
    # half a step, and the rounding of a float32 quotient of at most 127
    assert (quantized - steps).abs().max() <= 0.5 + 127 * 2**-23
    assert quantized.abs().amax(1).tolist() == [127] * 20


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 5, 40])
def test_the_product_errs_by_the_rounding_of_activations_alone(
    num_rows: int, with_bias: bool
) -> None:
    bias = normal(2, 70) if with_bias else None
    product = Int8Linear(normal(1, 70, 300), bias)
    x = normal(3, num_rows, 300) * 10
    plain = product.plain().double()
    want = x.double() @ plain.T + (0 if bias is None else bias.double())
    step = x.abs().amax(1, keepdim=True).double() / ACTIVATION_LIMIT
    # Each activation is off by half a step at most, so an output by that times its weights' sum;
    # float32 scales and sums add some 2^-22 of the terms.
    bound = (0.5 * step + x.abs().amax(1, keepdim=True) * 2**-21) * plain.abs().sum(1)
    assert ((product(x).double() - want).abs() <= bound).all()


def test_bits_of_a_row_do_not_depend_on_the_others() -> None:
    for inputs, outputs in ((576, 960), (576, 3072), (1536, 576), (33, 7)):
        product = Int8Linear(normal(inputs, outputs, inputs), None)
        x = normal(5, 40, inputs)
        want = product(x)
        for num_rows in (1, 2, 5, 9, 33):
            assert torch.equal(product(x[:num_rows]), want[:num_rows])
            assert torch.equal(product(x[40 - num_rows :]), want[40 - num_rows :])


def test_rows_of_zeros_and_of_no_numbers_stay_so_and_stay_apart() -> None:
    bias = normal(7, 6)
    product = Int8Linear(normal(6, 6, 16), bias)
    x = normal(8, 4, 16)
    want = product(x)
    x[1] = 0
    x[2, 3] = float("nan")
    got = product(x)
    assert torch.equal(got[1], bias)
    assert got[2].isnan().all()
    assert torch.equal(got[::3], want[::3])


def test_the_answer_has_the_dtype_of_the_question() -> None:
    product = Int8Linear(normal(9, 8, 16).bfloat16(), None)
    assert product(normal(1, 3, 16).bfloat16()).dtype == torch.bfloat16
    assert product.plain().dtype == torch.bfloat16


def test_integer_products_are_exact_here() -> None:
    assert has_exact_products()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_self_test_passes_in_deterministic_mode(dtype: torch.dtype) -> None:
    report = self_test(int8_target(dtype=dtype, deterministic=True))
    assert report.passed, report


@pytest.mark.parametrize("tied", [False, True])
def test_the_target_is_the_float_model_of_its_rounded_weights(tied: bool) -> None:
    model = int8_target(qkv_bias=True, qk_norm=True, tie_embeddings=tied)
    layers = {i: model.layer_weights(i) for i in range(model.spec.num_layers)}
    weights = TargetWeights(model.embedding, layers, model.final_norm, model.head)
    plain = make_target(weights, model.spec, 2, deterministic=False)
    ids = random_ids(40, 64)
    want = forward(plain, whole_cache(plain), [Segment(0, 0, ids)])
    got = forward(model, whole_cache(model), [Segment(0, 0, ids)])
    # Steps of 2^-14 of the largest activation through 4 layers; the weights' own steps of 2^-7
    # move these logits by more than 0.05.
    assert (got - want).abs().max() < 5e-3
    unrounded = build_target(qkv_bias=True, qk_norm=True, tie_embeddings=tied)
    far = forward(unrounded, whole_cache(unrounded), [Segment(0, 0, ids)])
    assert (got - far).abs().max() > 0.05
    assert (model.embedding is model.head) == tied
    assert torch.equal(model.embedding, unrounded.embedding) != tied


def test_the_trainer_s_part_is_that_of_the_server(tmp_path: Path) -> None:
    make_model_folder(tmp_path)
    config = ModelConfig(quantization="int8")

    def load(layers: str) -> TargetModel:
        return load_target(
            tmp_path,
            config,
            2,
            deterministic=False,
            layers=layers,  # type: ignore[arg-type]
            max_context_len=256,
        )

    whole, part = load("all"), load("shallow")
    segments = [Segment(0, 0, random_ids(30, 300))]
    want = whole.shallow(whole.plan(segments), whole.new_cache(2, 1, 64))
    assert torch.equal(part.shallow(part.plan(segments), part.new_cache(2, 1, 64)), want)
    assert torch.equal(part.head, whole.head)
    for name in LayerWeights.__slots__:
        mine, theirs = (operator.attrgetter(name)(m.layer_weights(2)) for m in (part, whole))
        assert mine is None if theirs is None else torch.equal(mine, theirs), name


def test_a_draft_s_matrices_stay_floats() -> None:
    kernels = choose_kernels(
        torch.float64, CPU, quantization=Quantization.INT8, deterministic=False
    )
    assert (kernels.target, kernels.others) == (Packing.INT8, Packing.PLAIN)


def test_where_products_are_inexact_or_on_a_gpu_it_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def choose(device: str) -> None:
        choose_kernels(
            torch.float32,
            torch.device(device),
            quantization=Quantization.INT8,
            deterministic=True,
        )

    with pytest.raises(ModelRefused, match="int8 runs on a CPU; use none"):
        choose("cuda")
    monkeypatch.setattr(linear, "has_exact_products", lambda: False)
    with pytest.raises(ModelRefused, match="int8: the byte products of this processor"):
        choose("cpu")
