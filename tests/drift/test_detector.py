"""Drift alarms: falls of one domain, soon; not noise, not learning, not another domain."""

import numpy as np

from dvi.config import DriftConfig
from dvi.drift import EndedRequest, FirstCounts
from dvi.drift.detector import DomainDetectors


def ended(rng, rate, domain="a", tried=20):
    return EndedRequest(domain, FirstCounts(tried, rng.binomial(tried, rate)))


def first_event(detectors, rng, rates, domain="a"):
    """Index and event of the first alarm."""
    for index, rate in enumerate(rates):
        event = detectors.update(ended(rng, rate, domain))
        if event is not None:
            return index, event
    return None


def test_a_sharp_fall_is_told_within_fifteen_requests_with_before_and_after():
    for seed in range(20):
        rates = [0.6] * 60 + [0.2] * 30
        found = first_event(DomainDetectors(DriftConfig()), np.random.default_rng(seed), rates)
        assert found is not None
        index, event = found
        assert 60 <= index < 75
        assert abs(event.before - 0.6) < 0.08  # it holds the first low requests as well
        assert event.after < 0.4


def test_a_steady_domain_and_one_that_learns_are_quiet():
    for seed in range(10):
        rng = np.random.default_rng(seed)
        assert first_event(DomainDetectors(DriftConfig()), rng, [0.5] * 500) is None
        rising = np.linspace(0.0, 0.8, 500)
        assert first_event(DomainDetectors(DriftConfig()), rng, rising) is None


def test_domains_do_not_disturb_each_other():
    rng, detectors = np.random.default_rng(0), DomainDetectors(DriftConfig())
    for _ in range(100):
        assert detectors.update(ended(rng, 0.8, "easy")) is None
        assert detectors.update(ended(rng, 0.1, "hard")) is None


def test_after_an_alarm_the_new_level_is_the_usual_one():
    rng, detectors = np.random.default_rng(3), DomainDetectors(DriftConfig())
    assert first_event(detectors, rng, [0.6] * 60 + [0.2] * 30) is not None
    assert first_event(detectors, rng, [0.2] * 100) is None
