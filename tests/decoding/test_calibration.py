"""Rates are those of what was seen, by what spoke for it, and follow when it changes."""

from __future__ import annotations

import math
import random

import pytest

from dvi.decoding.calibration import (
    PUBLISHED_WEIGHT,
    UNTRIED,
    Calibration,
    confidence,
    length_bucket,
    share_bucket,
)
from dvi.drafting import Proposal
from dvi.drafting.base import Match
from dvi.types import Source


def drafted(*logprobs: float) -> Proposal:
    return Proposal((0,) * len(logprobs), logprobs, Source.NEURAL, 1)


def recalled(*matches: Match) -> Proposal:
    return Proposal((0,) * len(matches), (), Source.MEMORY, 0, matches)


def test_confident_proposals_are_believed_more_where_they_fare_better():
    rng = random.Random(0)
    calibration = Calibration(4)
    sure, doubtful = math.log(0.95), math.log(0.25)
    for _ in range(400):
        calibration.learn(drafted(sure), 1, int(rng.random() < 0.9), sampled=False)
        calibration.learn(drafted(doubtful), 1, int(rng.random() < 0.2), sampled=False)
    rates = calibration.neural(sampled=False)
    # 200 outcomes are remembered: standard deviations .021 and .028, four of them allowed.
    assert rates.after(0, sure) == pytest.approx(0.9, abs=0.09)
    assert rates.after(0, doubtful) == pytest.approx(0.2, abs=0.12)
    assert rates.before(0) == pytest.approx(0.55, abs=0.15)


def test_only_judged_proposals_count_and_the_last_judged_may_be_a_reject():
    calibration = Calibration(4)
    for _ in range(300):
        calibration.learn(drafted(-0.1, -0.1, -0.1), 2, 1, sampled=False)
    rates = calibration.neural(sampled=False)
    assert rates.before(0) > 0.95
    assert rates.before(1) < 0.05
    assert 0.4 < rates.before(2) < 0.6  # never judged: what is known of all


def test_greedy_and_sampled_requests_are_counted_apart():
    calibration = Calibration(2)
    for _ in range(100):
        calibration.learn(drafted(-0.1), 1, 0, sampled=True)
        calibration.learn(recalled(Match(3, 1, 1)), 1, 0, sampled=True)
    assert calibration.neural(sampled=False).before(0) == UNTRIED
    assert calibration.neural(sampled=True).before(0) < 0.05
    assert calibration.memory(sampled=False).value(Match(3, 1, 1)) > 0.3
    assert calibration.memory(sampled=True).value(Match(3, 1, 1)) < 0.1


def test_long_and_unanimous_matches_are_believed_more_before_anything_is_known():
    rates = Calibration(2).memory(sampled=False)
    by_length = [rates.value(Match(length, 1, 1)) for length in (1, 2, 3, 4, 6, 9, 16)]
    assert by_length == sorted(by_length)
    assert rates.value(Match(4, 1, 2)) < rates.value(Match(4, 2, 2))


def test_memory_rates_follow_length_and_share():
    calibration = Calibration(2)
    good, bad = Match(9, 4, 4), Match(9, 1, 4)
    for _ in range(300):
        calibration.learn(recalled(good), 1, 1, sampled=False)
        calibration.learn(recalled(bad), 1, 0, sampled=False)
    rates = calibration.memory(sampled=False)
    assert rates.value(good) > 0.9
    assert rates.value(bad) < 0.1
    assert rates.overall() == pytest.approx(0.5, abs=0.05)


def test_old_outcomes_are_forgotten():
    calibration = Calibration(2)
    for _ in range(1000):
        calibration.learn(drafted(-0.1), 1, 0, sampled=False)
    for _ in range(600):
        calibration.learn(drafted(-0.1), 1, 1, sampled=False)
    assert calibration.neural(sampled=False).after(0, -0.1) > 0.9  # 1 - e^-3 = .95


def test_a_new_version_starts_from_what_was_published_of_it():
    calibration = Calibration(2)
    for _ in range(1000):
        calibration.learn(drafted(-0.1), 1, 0, sampled=False)
    assert calibration.neural(sampled=False).before(0) < 0.02
    calibration.follow_version(7, 0.8)
    # A fiftieth of 200 outcomes stays, four against the weight of the published figure; and the
    # position's own four against as many of that.
    overall = 0.8 * PUBLISHED_WEIGHT / (PUBLISHED_WEIGHT + 4)
    assert calibration.neural(sampled=False).before(0) == pytest.approx(overall / 2, abs=0.01)
    for _ in range(30):
        calibration.learn(drafted(-0.1), 1, 1, sampled=False)
    before = calibration.neural(sampled=False).before(0)
    calibration.follow_version(7, 0.1)  # the same version: nothing new
    assert calibration.neural(sampled=False).before(0) == before > 0.5


def test_buckets_cover_all_values():
    assert [confidence(math.log(p)) for p in (1e-9, 0.05, 0.15, 0.95, 1.0)] == [0, 0, 1, 9, 9]
    lengths = [length_bucket(Match(n, 1, 1)) for n in (1, 2, 3, 4, 5, 6, 8, 9, 15, 16, 99)]
    assert lengths == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    shares = [
        share_bucket(Match(1, *pair)) for pair in ((1, 4), (1, 2), (3, 4), (9, 10), (1, 1), (2, 2))
    ]
    assert shares == [0, 0, 1, 2, 2, 3]
