"""Turns and figures of the net part, from known answers and a known scrape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dvi.bench.net import TURN, break_even, in_turns, section
from dvi.demo.answers import Answer
from dvi.traffic.stream import DOMAINS, make_stream
from tests.demo.answers import make_answer

METRICS = (
    "dvi_trainer_steps_total 12.0\ndvi_trainer_cpu_seconds_total 3.0\n"
    "dvi_trainer_payback_ratio 2.5\n"
)


def answers(first: int, domain: str, seconds: float) -> list[Answer]:
    made = [make_answer(first + place, domain=domain) for place in range(2)]
    return [replace(one, started_s=0.0, finished_s=seconds) for one in made]


def test_turns_are_the_stream_in_order_and_cross_no_domain() -> None:
    stream = make_stream(TURN + 3, seed=0)
    turns = in_turns(stream)
    assert [prompt for turn in turns for prompt in turn] == list(stream)
    assert [len(turn) for turn in turns] == [TURN, 3] * len(DOMAINS)
    assert all(len({prompt.domain for prompt in turn}) == 1 for turn in turns)


@pytest.mark.parametrize(
    ("saved_s", "turns"),
    [
        ([1.0, 1.0], 1),
        ([-1.0, 0.5, 1.0], 3),  # -1, -.5, .5
        ([1.0, -2.0, 3.0], 3),  # 1, -1, 2: ahead at first, but not to stay
        ([-1.0, 0.5], None),
        ([1.0, -1.0], None),
    ],
)
def test_break_even_is_where_the_sum_stays_above_zero(
    saved_s: list[float], turns: int | None
) -> None:
    assert break_even(saved_s) == turns


def test_ratios_are_of_the_same_requests_and_break_even_counts_them() -> None:
    slow_then_fast = [
        (answers(0, DOMAINS[0], 4.0), answers(0, DOMAINS[0], 2.0)),
        (answers(2, DOMAINS[1], 1.0), answers(2, DOMAINS[1], 4.0)),
    ]
    found = section(slow_then_fast, METRICS)
    assert found.data["over_untrained"] == pytest.approx(12.0 / 10.0)
    assert found.data["over_untrained_by_group"] == {DOMAINS[0]: 0.5, DOMAINS[1]: 4.0}
    assert found.data["saved_s"] == [-4.0, 6.0]
    assert found.data["break_even_requests"] == 4
    assert (found.data["trainer_steps"], found.data["payback_ratio"]) == (12.0, 2.5)
    assert found.data["compared"] == found.data["identical"] == 4


def test_a_run_stopped_before_its_first_turn_says_so() -> None:
    with pytest.raises(ValueError, match="stopped before"):
        section([], METRICS)
