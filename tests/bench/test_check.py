"""The check that stands before every speed-up: planted differences are found and measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dvi.bench.bench import Ids
from dvi.bench.check import compare, own_bound
from dvi.bench.prompts import Item
from dvi.bench.race import Answer, How, Result, Turn, single_units
from dvi.decoding.gap import INT8_NEAR_TIE, near_tie_bound
from dvi.modeling.linear import Quantization
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from tests.rigs import build_target

PROMPT = (3, 1, 4, 1, 5)
HOW = How(max_tokens=4, temperature=0.0, first_seed=0)


def _result(plain: Ids, other: Ids) -> Result:
    units = single_units([Item("a", PROMPT)], 1)
    turns = {name: [Turn(1.0, [Answer(ids)])] for name, ids in (("plain", plain), ("x", other))}
    return Result(units, turns)


@torch.inference_mode()
def _logits(target: TargetModel, ids: Ids) -> torch.Tensor:
    cache = target.new_cache(target.spec.num_layers, 1, 32)
    plan = target.plan([Segment(0, 0, ids)])
    return target.logits(target.deep(target.shallow(plan, cache), plan, cache)[-1:])[0]


def test_equal_answers_are_identical() -> None:
    found = compare(_result((1, 2), (1, 2)), HOW, build_target(), ["x"], 1e-9)
    assert (found.compared, found.identical, found.failure) == (1, 1, None)


def test_a_wrong_token_is_a_failure_with_its_place_and_margin() -> None:
    target = build_target()
    logits = _logits(target, (*PROMPT, 7))
    best, worst = int(logits.argmax()), int(logits.argmin())
    found = compare(_result((7, best), (7, worst)), HOW, target, ["x"], 1e-9)
    (one,) = found.divergences
    assert (one.runner, one.position) == ("x", 1)
    assert one.margin == pytest.approx(float(logits[best] - logits[worst]), rel=1e-6)
    assert found.failure is not None
    assert "token 1" in found.failure


def test_a_near_tie_within_the_bound_is_counted_and_no_failure() -> None:
    target = build_target(dtype=torch.float32)
    logits = _logits(target, PROMPT)
    first, second = (int(i) for i in logits.topk(2).indices)
    found = compare(_result((first,), (second,)), HOW, target, ["x"], 1e-9)
    gap = float(logits[first] - logits[second])
    wide = replace(found, bound=2 * gap)
    assert (wide.failure, wide.compared - wide.identical) == (None, 1)
    assert replace(found, bound=gap / 2).failure is not None


def test_an_answer_that_ends_too_early_is_a_failure() -> None:
    found = compare(_result((1, 2), (1,)), HOW, build_target(), ["x"], 1e-9)
    assert found.failure is not None


def test_a_deterministic_target_allows_no_near_tie() -> None:
    exact, fast = (build_target(dtype=torch.float32, deterministic=one) for one in (True, False))
    assert (own_bound(exact), own_bound(fast)) == (0.0, 1e-3)


def test_rounded_activations_part_sooner_than_floats() -> None:
    """Of 8-bit weights; how far is measured in dvi/decoding/gap.py."""
    quantized = build_target(dtype=torch.float32, quantization=Quantization.INT8)
    assert near_tie_bound(quantized) == INT8_NEAR_TIE > near_tie_bound(build_target())
