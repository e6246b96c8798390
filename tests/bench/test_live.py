"""Figures of the live part from known answers and a known scrape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dvi.bench.live import section, swap_pauses
from dvi.demo.answers import Answer
from dvi.demo.client import metric
from dvi.traffic.stream import DOMAINS
from tests.demo.answers import make_answer

METRICS = """# TYPE dvi_swap_pause_seconds histogram
dvi_swap_pause_seconds_bucket{le="0.0001"} 97.0
dvi_swap_pause_seconds_bucket{le="0.0005"} 99.0
dvi_swap_pause_seconds_bucket{le="0.001"} 100.0
dvi_swap_pause_seconds_bucket{le="+Inf"} 100.0
dvi_trainer_steps_total 12.0
"""


def test_the_bucket_of_the_99th_percentile_is_read_from_the_scrape() -> None:
    assert swap_pauses(METRICS) == (100.0, 0.5)
    assert swap_pauses("") == (0.0, None)
    assert metric(METRICS, "dvi_trainer_steps_total") == 12.0
    assert metric(METRICS, "dvi_trainer_cpu_seconds_total") == 0.0


def test_a_live_ratio_is_against_both_plain_passes() -> None:
    def answers(seconds: float) -> list:
        made = [make_answer(i, domain=name) for i, name in enumerate(DOMAINS)]
        return [replace(one, started_s=0.0, finished_s=seconds) for one in made]

    found = section(answers(1.0), (answers(2.0), answers(4.0)), METRICS)
    assert found.data["over_plain_by_group"]["json"] == {
        "median": 3.0,
        "low": 2.0,
        "high": 4.0,
        "repeats": 2,
    }
    assert found.data["over_plain"] == pytest.approx(3.0)
    assert found.data["compared"] == found.data["identical"] == 2 * len(DOMAINS)


def test_a_live_run_that_was_stopped_is_reported_for_what_was_answered_both_ways() -> None:
    def answers(domains: Sequence[str], seconds: float) -> list[Answer]:
        made = [make_answer(DOMAINS.index(name), domain=name) for name in domains]
        return [replace(one, started_s=0.0, finished_s=seconds) for one in made]

    found = section(answers(DOMAINS[:2], 1.0), (answers(DOMAINS[1:], 2.0), []), METRICS)
    assert {name: one["median"] for name, one in found.data["over_plain_by_group"].items()} == {
        DOMAINS[1]: 2.0
    }
    assert found.data["over_plain"] == 2.0
    assert found.data["compared"] == 1
    with pytest.raises(ValueError, match="stopped before"):
        section(answers(DOMAINS[:1], 1.0), (answers(DOMAINS[1:], 2.0), []), METRICS)
