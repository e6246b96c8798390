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
)
from dvi.decoding.memory_rates import (
    HEAT_LOSS,
    HEAT_TEMPERATURES,
    LENGTH_PRIORS,
    LENGTH_STEPS,
    heat,
    length_bucket,
    share_bucket,
)
from dvi.drafting import Proposal
from dvi.drafting.base import Match
from dvi.types import SamplingParams, Source

GREEDY, COOL, WARM, HOT = range(len(HEAT_TEMPERATURES))


def drafted(*logprobs: float) -> Proposal:
    return Proposal((0,) * len(logprobs), logprobs, Source.NEURAL, 1)


def recalled(*matches: Match) -> Proposal:
    return Proposal((0,) * len(matches), (), Source.MEMORY, 0, matches)


def test_confident_proposals_are_believed_more_where_they_fare_better():
    rng = random.Random(0)
    calibration = Calibration(4)
    sure, doubtful = math.log(0.95), math.log(0.25)
    for _ in range(400):
        calibration.learn(drafted(sure), 1, int(rng.random() < 0.9), GREEDY)
        calibration.learn(drafted(doubtful), 1, int(rng.random() < 0.2), GREEDY)
    rates = calibration.neural(GREEDY)
    # 200 outcomes are remembered: standard deviations .021 and .028, four of them allowed.
    assert rates.after(0, sure) == pytest.approx(0.9, abs=0.09)
    assert rates.after(0, doubtful) == pytest.approx(0.2, abs=0.12)
    assert rates.before(0) == pytest.approx(0.55, abs=0.15)


def test_only_judged_proposals_count_and_the_last_judged_may_be_a_reject():
    calibration = Calibration(4)
    for _ in range(300):
        calibration.learn(drafted(-0.1, -0.1, -0.1), 2, 1, GREEDY)
    rates = calibration.neural(GREEDY)
    assert rates.before(0) > 0.95
    assert rates.before(1) < 0.05
    assert 0.4 < rates.before(2) < 0.6  # never judged: what is known of all


def test_greedy_and_sampled_requests_are_counted_apart():
    calibration = Calibration(2)
    for _ in range(100):
        calibration.learn(drafted(-0.1), 1, 0, WARM)
        calibration.learn(recalled(Match(3, 1, 1)), 1, 0, WARM)
    assert calibration.neural(GREEDY).before(0) == UNTRIED
    assert calibration.neural(WARM).before(0) < 0.05
    assert calibration.memory(GREEDY).value(Match(3, 1, 1)) > 0.3
    assert calibration.memory(WARM).value(Match(3, 1, 1)) < 0.1


def test_long_and_unanimous_matches_are_believed_more_before_anything_is_known():
    rates = Calibration(2).memory(GREEDY)
    by_length = [rates.value(Match(length, 1, 1)) for length in (1, 2, 3, 4, 6, 9, 16)]
    assert by_length == sorted(by_length)
    assert rates.value(Match(4, 1, 2)) < rates.value(Match(4, 2, 2))


def test_memory_rates_follow_length_and_share():
    calibration = Calibration(2)
    good, bad = Match(9, 4, 4), Match(9, 1, 4)
    for _ in range(300):
        calibration.learn(recalled(good), 1, 1, GREEDY)
        calibration.learn(recalled(bad), 1, 0, GREEDY)
    rates = calibration.memory(GREEDY)
    assert rates.value(good) > 0.9
    assert rates.value(bad) < 0.1
    assert rates.overall(UNTRIED) == pytest.approx(0.5, abs=0.05)


def test_old_outcomes_are_forgotten():
    calibration = Calibration(2)
    for _ in range(1000):
        calibration.learn(drafted(-0.1), 1, 0, GREEDY)
    for _ in range(600):
        calibration.learn(drafted(-0.1), 1, 1, GREEDY)
    assert calibration.neural(GREEDY).after(0, -0.1) > 0.9  # 1 - e^-3 = .95


def test_a_new_version_starts_from_what_was_published_of_it():
    calibration = Calibration(2)
    for _ in range(1000):
        calibration.learn(drafted(-0.1), 1, 0, GREEDY)
    assert calibration.neural(GREEDY).before(0) < 0.02
    calibration.follow_version(7, 0.8)
    # A fiftieth of 200 outcomes stays, four against the weight of the published figure; and the
    # position's own four against as many of that.
    overall = 0.8 * PUBLISHED_WEIGHT / (PUBLISHED_WEIGHT + 4)
    assert calibration.neural(GREEDY).before(0) == pytest.approx(overall / 2, abs=0.01)
    for _ in range(30):
        calibration.learn(drafted(-0.1), 1, 1, GREEDY)
    before = calibration.neural(GREEDY).before(0)
    calibration.follow_version(7, 0.1)  # the same version: nothing new
    assert calibration.neural(GREEDY).before(0) == before > 0.5


def test_buckets_cover_all_values():
    assert [confidence(math.log(p)) for p in (1e-9, 0.05, 0.15, 0.95, 1.0)] == [0, 0, 1, 9, 9]
    lengths = [length_bucket(Match(n, 1, 1)) for n in (1, 2, 3, 4, 5, 6, 8, 9, 15, 16, 99)]
    assert lengths == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    cases = {(0.1, 1): 0, (1, 4): 1, (1, 2): 2, (3, 4): 4, (9, 10): 5, (0.9, 1): 5}
    assert {pair: share_bucket(Match(1, *pair)) for pair in cases} == cases
    certain = [share_bucket(Match(1, *pair)) for pair in ((1, 1), (0.97, 1), (2, 2), (1.94, 2))]
    assert certain == [6, 6, 7, 7]  # of one occurrence, and of several


def test_kinds_of_request_are_told_apart_by_what_is_drawn():
    def kind(temperature: float, **fields: object) -> int:
        return heat(SamplingParams(max_tokens=1, temperature=temperature, **fields))

    assert [kind(t) for t in (0.0, 0.1, 0.4, 0.41, 0.85, 0.9, 2.0)] == [0, 1, 1, 2, 2, 3, 3]
    assert kind(1.0, top_k=1) == GREEDY  # one id is left: nothing is drawn
    assert kind(1.0, top_k=2) == HOT
    assert [kind(t) for t in HEAT_TEMPERATURES] == [GREEDY, COOL, WARM, HOT]


@pytest.mark.parametrize("length", LENGTH_STEPS)
def test_the_hotter_a_request_the_less_a_guess_is_believed(length):
    calibration = Calibration(2)
    values = [calibration.memory(kind).value(Match(length, 1, 1)) for kind in range(4)]
    assert values == sorted(values, reverse=True)
    prior = LENGTH_PRIORS[length_bucket(Match(length, 1, 1))]
    expected = [prior / (1 + HEAT_LOSS * temperature) for temperature in HEAT_TEMPERATURES]
    assert values == pytest.approx(expected)


def test_few_outcomes_of_one_length_correct_every_length():
    calibration = Calibration(2)
    matches = [Match(length, 1, 1) for length in LENGTH_STEPS]
    before = [calibration.memory(WARM).value(match) for match in matches]
    for _ in range(10):
        calibration.learn(recalled(matches[3]), 1, 0, WARM)
    after = [calibration.memory(WARM).value(match) for match in matches]
    gains = [late / early for late, early in zip(after, before, strict=True)]
    assert max(gains) < 0.7  # ten misses where four hits were expected
    assert gains[3] == min(gains)  # its own bucket on top of the others'


def test_priors_that_tell_nothing_are_flattened_and_good_ones_are_kept():
    rng = random.Random(4)
    flat, steep = Calibration(2), Calibration(2)
    for _ in range(300):
        match = Match(rng.choice(LENGTH_STEPS), 1, 1)
        prior = LENGTH_PRIORS[length_bucket(match)]
        flat.learn(recalled(match), 1, int(rng.random() < 0.4), GREEDY)
        steep.learn(recalled(match), 1, int(rng.random() < prior), GREEDY)
    for length, prior in zip(LENGTH_STEPS, LENGTH_PRIORS, strict=True):
        unseen = Match(length, 1, 2)  # a bucket of its own that nothing was counted in
        discount = 0.75  # half of the occurrences went on otherwise
        # 300 outcomes over two parameters: standard error .06 at the ends, three of them allowed.
        assert flat.memory(GREEDY).value(unseen) == pytest.approx(0.4, abs=0.18)
        assert steep.memory(GREEDY).value(unseen) == pytest.approx(prior * discount, abs=0.18)


def test_what_one_temperature_showed_starts_another_and_greedy_rates_stay():
    calibration = Calibration(2)
    match = Match(4, 1, 1)
    before = [calibration.memory(kind).value(match) for kind in range(4)]
    for _ in range(20):
        calibration.learn(recalled(match), 1, 0, WARM)
    after = [calibration.memory(kind).value(match) for kind in range(4)]
    assert after[GREEDY] == before[GREEDY]
    assert after[WARM] < after[HOT] < before[HOT] / 2
    assert after[COOL] < before[COOL] / 2


def test_sampled_requests_start_from_what_greedy_ones_showed():
    calibration = Calibration(2)
    match = Match(4, 1, 1)
    before = calibration.memory(WARM).value(match)
    for _ in range(40):
        calibration.learn(recalled(match), 1, 0, GREEDY)
        calibration.learn(drafted(-0.1), 1, 0, GREEDY)
    assert calibration.memory(WARM).value(match) < before / 2
    assert calibration.neural(WARM).before(0) < UNTRIED / 2


def test_a_confidence_is_known_at_positions_where_it_was_never_seen():
    calibration = Calibration(4)
    sure, doubtful = math.log(0.95), math.log(0.25)
    for _ in range(100):
        calibration.learn(drafted(sure), 1, 1, GREEDY)
        calibration.learn(drafted(doubtful), 1, 0, GREEDY)
    rates = calibration.neural(GREEDY)
    assert rates.after(3, sure) > rates.before(3) + 0.3
    assert rates.after(3, doubtful) < rates.before(3) - 0.3
