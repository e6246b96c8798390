"""Averages and counts."""

import math

import numpy as np
import pytest

from dvi.metrics import PositionCounts, TokenAverage
from dvi.types import AcceptanceCounts, Source


def test_an_average_without_tokens_has_no_value():
    average = TokenAverage(100)
    assert average.value is None
    average.update(0, 0)
    assert average.value is None
    assert average.fullness == 0


def test_the_first_stretch_is_believed_as_it_is():
    average = TokenAverage(1000)
    average.update(4, 1)
    assert average.value == pytest.approx(0.25)


def test_a_token_fades_by_e_over_one_window():
    average = TokenAverage(200)
    average.update(1, 1)
    before = average.value * average.fullness
    average.update(200, 0)
    assert average.value * average.fullness == pytest.approx(before / math.e)
    assert average.fullness == pytest.approx(1 - math.exp(-201 / 200))


def test_splitting_a_stretch_of_equal_rate_changes_nothing():
    whole, parts = TokenAverage(50), TokenAverage(50)
    for average in (whole, parts):
        average.update(30, 3)
    whole.update(100, 60)
    for _ in range(20):
        parts.update(5, 3)
    assert whole.value == pytest.approx(parts.value)
    assert whole.fullness == pytest.approx(parts.fullness)


def test_an_average_of_single_tokens_is_the_exponentially_weighted_mean():
    events = [1, 0, 0, 1, 1, 0, 1]
    average = TokenAverage(3)
    for event in events:
        average.update(1, event)
    weights = [math.exp(-age / 3) for age in range(len(events))][::-1]
    assert average.value == pytest.approx(np.average(events, weights=weights))


def test_an_average_stays_between_its_extremes():
    average = TokenAverage(10)
    for _ in range(1000):
        average.update(7, 7)
    assert average.value == pytest.approx(1.0)
    assert average.value <= 1.0
    average.update(10_000, 0)
    assert average.value == pytest.approx(0.0, abs=1e-12)


def test_more_hits_than_tokens_are_refused():
    with pytest.raises(AssertionError):
        TokenAverage(10).update(1, 2)


def test_positions_are_counted_unconditionally():
    counts = PositionCounts(4)
    counts.add_round(3, 1)
    counts.add_round(4, 4)
    counts.add_round(0, 0)
    assert counts.proposed == [2, 2, 2, 1]
    assert counts.accepted == [2, 1, 1, 1]
    with pytest.raises(AssertionError):
        counts.add_round(5, 0)


def test_counts_of_two_stretches_add_up_to_those_of_both():
    rounds = [
        (Source.NEURAL, 4, 2, 1),
        (Source.TARGET, 0, 0, 0),
        (Source.MEMORY, 3, 3, 3),
        (Source.NEURAL, 2, 1, 0),
    ]
    whole = AcceptanceCounts()
    for one in rounds:
        whole.add_round(*one)
    for cut in range(len(rounds) + 1):
        total = AcceptanceCounts()
        for stretch in (rounds[:cut], rounds[cut:]):
            part = AcceptanceCounts()
            for one in stretch:
                part.add_round(*one)
            total.add(part)
        assert total == whole
