"""The guard's arithmetic: what it compares, how soon it sees, how rarely it errs."""

import numpy as np
import pytest

from dvi.drift import FirstCounts, GuardRule, compare

RULE = GuardRule(confidence=0.999, min_proposals=24, min_drop=0.05)


def counts(**domains):
    return {name: FirstCounts(*pair) for name, pair in domains.items()}


def test_one_domain_is_the_two_sample_test_with_doubled_variance():
    found = compare(counts(a=(50, 10)), counts(a=(200, 100)))
    # 110 hits in 250: expected 22 of 50; variance 50 * 200 * 110 * 140 / (250^2 * 249)
    variance = 50 * 200 * 110 * 140 / (250**2 * 249)
    assert found.z == pytest.approx((10 - 22) / (2 * variance) ** 0.5)
    assert (found.tried, found.before, found.after) == (50, 0.5, 0.2)
    assert found.drop == pytest.approx(0.3)


def test_a_domain_that_the_old_version_never_saw_says_nothing():
    found = compare(counts(new=(500, 0)), counts(old=(500, 400)))
    assert (found.tried, found.z) == (0, 0)
    assert not RULE.is_fall(found)


def test_traffic_that_moves_to_a_hard_domain_is_no_fall():
    """Pooled, .8 falls to .26; within each domain nothing changes."""
    old = counts(easy=(400, 320), hard=(40, 8))
    new = counts(easy=(40, 32), hard=(400, 80))
    found = compare(new, old)
    assert found.drop == pytest.approx(0)
    assert found.z == pytest.approx(0)
    assert not RULE.is_fall(found)


def test_a_fall_needs_proposals_size_and_confidence():
    assert RULE.is_fall(compare(counts(a=(60, 6)), counts(a=(300, 180))))
    assert not RULE.is_fall(compare(counts(a=(20, 0)), counts(a=(300, 180))))  # too few
    assert not RULE.is_fall(compare(counts(a=(60, 25)), counts(a=(300, 150))))  # chance
    small = compare(counts(a=(1e5, 4.8e4)), counts(a=(1e5, 5.2e4)))
    assert small.z < -10
    assert not RULE.is_fall(small)  # certain, and not worth an exchange
    off = GuardRule(confidence=0, min_proposals=1, min_drop=0)
    assert not off.is_fall(compare(counts(a=(60, 0)), counts(a=(300, 300))))


def looks_until_fall(rng, new_rate, old_rate, num_looks):
    """Proposals of the new version until the guard fires; None: it never does."""
    per_look, old_tried = 10, 300
    old = counts(a=(old_tried, rng.binomial(old_tried, old_rate)))
    hits = 0
    for look in range(1, num_looks + 1):
        hits += rng.binomial(per_look, new_rate)
        if RULE.is_fall(compare(counts(a=(look * per_look, hits)), old)):
            return look * per_look
    return None


def test_a_useless_version_is_seen_within_200_rounds():
    rng = np.random.default_rng(1)
    for old_rate in (0.4, 0.6, 0.8):
        for _ in range(50):
            fired = looks_until_fall(rng, 0.02, old_rate, num_looks=20)
            assert fired is not None
            assert fired <= 100


def test_an_equal_version_is_hardly_ever_rolled_back_however_often_one_looks():
    rng = np.random.default_rng(2)
    fired = [looks_until_fall(rng, 0.5, 0.5, num_looks=60) for _ in range(400)]
    assert sum(one is not None for one in fired) <= 2
