"""Times of steps correct the shape of a measured profile; its scale and a recorded one stay."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import Controller
from dvi.decoding.lengths import StepCosts
from dvi.decoding.pace import (
    LEAST_SAMPLES,
    MOST_FACTOR,
    NEAR_STEPS,
    NUM_SAMPLES,
    REMEMBERED_STEPS,
    Pace,
    TimedStep,
    width_kind,
)
from dvi.types import Source
from tests.decoding.profiles import profile
from tests.decoding.test_controller import NOTHING, World, session

COSTS = profile()
BASE = StepCosts([COSTS.pass_s(1, 1 + more) for more in range(9)], COSTS.draft_s(1))


def nothing() -> None:
    """Nobody to tell."""


def told() -> None:
    raise AssertionError("stale")


def step(
    num_proposals: int, seconds: float, *, drafted: int = 0, sampled: bool = False
) -> TimedStep:
    return TimedStep(1, sampled, num_proposals, drafted, seconds)


def in_turns(pace: Pace, num_proposals: int, load: Callable[[], float], dearer: float) -> None:
    """Plain steps and wide ones that cost ``dearer`` times their record, under one load a pair."""
    for _ in range(NUM_SAMPLES):
        now = load()
        pace.book(step(0, BASE.passes[0] * now))
        pace.book(step(num_proposals, BASE.passes[num_proposals] * now * dearer))


def test_steps_as_recorded_change_nothing_under_any_load():
    rng = random.Random(0)
    pace = Pace(COSTS, nothing)
    for width in (1, 3, 8):
        in_turns(pace, width, lambda: rng.uniform(0.8, 9.0), 1.0)
    corrected = pace.corrected(BASE, 1, sampled=False)
    assert corrected.passes == pytest.approx(BASE.passes)
    assert corrected.draft_step_s == BASE.draft_step_s


def test_wide_steps_that_are_dearer_than_recorded_are_planned_so_and_others_are_not():
    rng = random.Random(1)
    pace = Pace(COSTS, nothing)
    in_turns(pace, 8, lambda: rng.uniform(0.8, 9.0), 1.4)
    corrected = pace.corrected(BASE, 1, sampled=False)
    assert corrected.passes[5:] == pytest.approx([1.4 * s for s in BASE.passes[5:]])
    assert corrected.passes[:5] == BASE.passes[:5]
    for batch, sampled in ((1, True), (2, False)):  # other kinds of step
        assert pace.corrected(BASE, batch, sampled=sampled).passes == BASE.passes


def test_draft_steps_are_corrected_by_what_is_left_of_the_steps_time():
    pace = Pace(COSTS, nothing)
    for _ in range(LEAST_SAMPLES):
        pace.book(step(0, 2 * BASE.passes[0]))
        pace.book(step(1, 2 * (BASE.passes[1] + 3 * 1.5 * BASE.draft_step_s), drafted=3))
    assert pace.corrected(BASE, 1, sampled=False).draft_step_s == pytest.approx(0.006)


def test_a_few_steps_or_steps_long_apart_say_nothing():
    pace = Pace(COSTS, nothing)
    for _ in range(LEAST_SAMPLES - 1):
        pace.book(step(0, BASE.passes[0]))
        pace.book(step(8, 2 * BASE.passes[8]))
    for _ in range(100):  # only the first of them have a plain step near, and one alone at that
        pace.book(step(2, 2 * BASE.passes[2]))
    assert NEAR_STEPS < LEAST_SAMPLES
    assert pace.corrected(BASE, 1, sampled=False).passes == BASE.passes


def test_single_pauses_and_absurd_times_are_bounded():
    rng = random.Random(2)
    pace = Pace(COSTS, nothing)
    in_turns(pace, 8, lambda: 1.0, 1.0)
    for _ in range(NUM_SAMPLES // 3):
        pace.book(step(0, BASE.passes[0]))
        pace.book(step(8, BASE.passes[8] * rng.uniform(20, 900)))
    assert pace.corrected(BASE, 1, sampled=False).passes[8] == pytest.approx(BASE.passes[8])
    in_turns(pace, 8, lambda: 1.0, 500.0)
    corrected = pace.corrected(BASE, 1, sampled=False)
    assert corrected.passes[8] == MOST_FACTOR * BASE.passes[8]


def test_what_was_seen_long_ago_is_forgotten():
    pace = Pace(COSTS, nothing)
    in_turns(pace, 8, lambda: 1.0, 2.0)
    for _ in range(REMEMBERED_STEPS):
        pace.book(step(0, BASE.passes[0]))
    assert pace.corrected(BASE, 1, sampled=False).passes == BASE.passes


def test_only_steps_faster_than_the_record_prove_it_wrong_and_only_once():
    calls: list[int] = []
    pace = Pace(COSTS, lambda: calls.append(1))
    for slowdown in (1.0, 8.0, 1 / 1.4):
        for _ in range(NUM_SAMPLES):
            pace.book(step(0, BASE.passes[0] * slowdown))
    assert not calls
    for _ in range(3 * NUM_SAMPLES):
        pace.book(step(0, BASE.passes[0] / 1.6))
    assert calls == [1]


def test_kinds_of_width_are_by_proposals_a_session():
    assert [width_kind(n, 1) for n in (0, 1, 2, 3, 4, 5, 8)] == [0, 1, 1, 2, 2, 3, 3]
    assert [width_kind(n, 8) for n in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]


def planned_source(controller: Controller) -> Source:
    (plan,) = controller.plan([session()], World(memory=0.9).offers(1))
    return plan.source


def test_a_controller_stops_drafting_where_steps_turn_out_too_dear():
    passes = profile(tuple((n, 0.293) for n in (1, 2, 4, 9)))  # a busy machine: all cost alike
    controller = Controller(DecodingConfig(), passes, Pace(passes, nothing))
    assert planned_source(controller) is Source.MEMORY
    recalled = World(memory=0.9).offers(1).recalled[0]
    (wide,) = controller.plan([session()], World(memory=0.9).offers(1))
    (plain,) = controller.plan([session(speculation=False)], World().offers(1))
    for _ in range(NUM_SAMPLES):  # in truth eight proposals cost nine times as much as none
        controller.book_time([session()], [plain], [NOTHING], 0.041)
        controller.book_time([session()], [wide], [recalled], 9 * 0.041)
    corrected = controller.plan([session()], World(memory=0.9).offers(1))[0]
    assert corrected.length < wide.length == 8
    fixed = Controller(DecodingConfig(), passes)  # recorded: times are not looked at
    for _ in range(NUM_SAMPLES):
        fixed.book_time([session()], [wide], [recalled], 9 * 0.041)
    assert fixed.plan([session()], World(memory=0.9).offers(1))[0].length == 8
