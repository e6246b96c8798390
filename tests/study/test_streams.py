"""Streams take each recorded request once, in the shape of their drift."""

from __future__ import annotations

import pytest

from dvi.study.arms import Arm, full, quick, small
from dvi.study.record import GROUP, chats
from dvi.study.streams import KINDS, StreamPlan, stretches
from dvi.traffic.open_prompts import MAX_PROMPTS, open_prompts

PLANS = [StreamPlan(kind, ("sql", "json"), 12) for kind in KINDS if kind != "stationary"]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_a_stream_takes_every_needed_request_once_in_an_order_of_its_seed(
    plan: StreamPlan,
) -> None:
    stream = plan.requests(3)
    assert sorted(stream) == sorted((d, i) for d, n in plan.needed().items() for i in range(n))
    assert stream == plan.requests(3)
    assert stream != plan.requests(4)


def test_sharp_and_return_are_blocks() -> None:
    def shape(kind: str) -> list[tuple[str, int]]:
        stream = StreamPlan(kind, ("sql", "json"), 5).requests(0)
        return [(stream[first][0], end - first) for first, end in stretches(stream)]

    assert shape("sharp") == [("sql", 5), ("json", 5)]
    assert shape("return") == [("sql", 5), ("json", 5), ("sql", 5)]


def test_a_gradual_stream_moves_from_the_first_domain_to_the_second() -> None:
    stream = StreamPlan("gradual", ("sql", "json"), 100).requests(0)
    thirds = [stream[:66], stream[67:133], stream[134:]]
    shares = [sum(domain == "json" for domain, _ in third) / len(third) for third in thirds]
    assert shares[0] < 0.35 < shares[1] < 0.65 < shares[2]  # expected: 1/6, 1/2, 5/6


def test_open_prompts_are_distinct_and_fewer_are_the_first_of_more() -> None:
    every = open_prompts(MAX_PROMPTS)
    assert len(set(every)) == MAX_PROMPTS
    assert open_prompts(10) == every[:10]


def test_a_later_group_goes_on_where_the_first_one_ends() -> None:
    for domain in ("sql", "open"):
        first, second = chats(domain, 0), chats(domain, GROUP)
        texts = [messages[-1]["content"] for messages in [*first, *second]]
        assert len(set(texts)) == 2 * GROUP


@pytest.mark.parametrize("arms", [small(), quick(), full()], ids=["small", "quick", "full"])
def test_arm_names_are_unique_and_every_setting_comes_once_before_a_second_seed(
    arms: list[Arm],
) -> None:
    names = [arm.name for arm in arms]
    assert len(set(names)) == len(names)
    assert [arm.seed for arm in arms] == sorted(arm.seed for arm in arms)
