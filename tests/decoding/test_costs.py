"""Costs decide the break-even acceptance, are measured with the given clock and can be recorded."""

from __future__ import annotations

import math

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import decode_batch
from dvi.decoding.costs import CostProfile, break_even_from_config, load_costs, measure_costs
from tests.decoding.engines import LIMITS, Ticks, make_request, make_rig, real_drafter
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=1)


def test_break_even_is_where_both_ways_of_decoding_are_equally_fast():
    costs = CostProfile(draft_len=3, draft_step_s=0.1, plain_s=1.0, verify_s=1.4)
    alpha = costs.break_even()
    tokens = 1 + alpha + alpha**2 + alpha**3
    assert tokens / (3 * 0.1 + 1.4) == pytest.approx(1 / 1.0)
    assert CostProfile(2, 5.0, 1.0, 1.0).break_even() == math.inf
    assert CostProfile(2, 0.0, 1.0, 1.0).break_even() == 0.0
    assert CostProfile(0, 0.0, 1.0, 1.0).break_even() == 0.0


def test_a_profile_survives_its_file(tmp_path):
    costs = CostProfile(4, 0.001, 0.03, 0.05)
    path = tmp_path / "costs.json"
    costs.save(path)
    assert load_costs(path) == costs
    path.write_text('{"plain_s": 1}', encoding="utf-8")
    with pytest.raises(ValueError, match="not a cost profile"):
        load_costs(path)


@pytest.mark.parametrize("kind", ["block", "head", "none"])
def test_measuring_leaves_nothing_behind_that_an_answer_could_see(kind):
    drafter = real_drafter(TARGET, kind, LIMITS)
    costs = measure_costs(TARGET, drafter, 4, Ticks())
    assert (costs.plain_s, costs.verify_s) == (1.0, 1.0)  # a tick each
    assert costs.draft_step_s == 0.25
    request = make_request("r", (1, 2, 3), max_tokens=40)
    measured = decode_batch(make_rig(TARGET, drafter).engine, [request])
    fresh = decode_batch(make_rig(TARGET, kind).engine, [request])
    assert measured == fresh


def test_a_configured_break_even_is_taken_and_nothing_measured_when_nothing_is_decided():
    drafter = real_drafter(TARGET, "head", LIMITS)

    def no_clock() -> float:
        raise AssertionError("measured")

    fixed = DecodingConfig(break_even_acceptance=0.3)
    assert break_even_from_config(fixed, TARGET, drafter, no_clock) == 0.3
    assert break_even_from_config(DecodingConfig(adaptive=False), TARGET, drafter, no_clock) == 0.0
    # Draft 4 steps and verify in a tick each, as a plain step: two plain steps' time a round.
    alpha = break_even_from_config(DecodingConfig(draft_len=4), TARGET, drafter, Ticks())
    assert sum(alpha**i for i in range(5)) == pytest.approx(2.0)
