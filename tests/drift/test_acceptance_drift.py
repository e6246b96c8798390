"""The fast and the slow average of acceptance."""

import pytest

from dvi.config import DriftConfig
from dvi.drift import AcceptanceDrift


def test_before_the_first_judged_token_the_gauges_read_zero():
    drift = AcceptanceDrift(DriftConfig())
    drift.update(0, 0)
    assert drift.alpha_fast is None
    assert drift.alpha_slow is None
    assert drift.gauges() == {"alpha_fast": 0.0, "alpha_slow": 0.0}


def test_steady_acceptance_reads_alike_in_both_windows():
    drift = AcceptanceDrift(DriftConfig(fast_tokens=50, slow_tokens=1000))
    for _ in range(300):
        drift.update(5, 3)
    assert drift.gauges() == pytest.approx({"alpha_fast": 0.6, "alpha_slow": 0.6})


def test_a_fall_shows_in_the_fast_average_first_and_in_the_slow_one_later():
    drift = AcceptanceDrift(DriftConfig(fast_tokens=50, slow_tokens=1000))
    for _ in range(1000):
        drift.update(5, 4)
    for _ in range(30):
        drift.update(5, 1)  # 150 tokens: three fast windows, 15% of the slow one
    assert drift.alpha_fast == pytest.approx(0.2, abs=0.6 * 0.05 + 1e-3)  # e^-3 = .05 is left
    assert drift.alpha_slow > 0.7
    for _ in range(1000):
        drift.update(5, 1)
    assert drift.alpha_slow == pytest.approx(0.2, abs=0.01)


def test_averages_are_weighted_by_judged_tokens_not_by_rounds():
    drift = AcceptanceDrift(DriftConfig(fast_tokens=1e6, slow_tokens=1e6))
    drift.update(8, 8)
    drift.update(1, 0)
    drift.update(1, 0)
    assert drift.alpha_fast == pytest.approx(0.8, abs=1e-4)  # windows far longer than the stretch
