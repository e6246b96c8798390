"""The KL -> RL schedule and the baseline."""

import pytest

from dvi.config import ObjectiveConfig
from dvi.objectives import Shares, next_baseline, shares_at


def test_warm_up_is_pure_kl_then_reward_rises_as_kl_falls_to_its_floor():
    config = ObjectiveConfig(warmup_steps=40, ramp_steps=80, kl_floor=0.05)
    assert shares_at(config, 0) == Shares(kl=1.0, reward=0.0)
    assert shares_at(config, 40) == Shares(kl=1.0, reward=0.0)
    for step in (41, 60, 80, 119, 120, 1000):
        ramp = min(1.0, (step - 40) / 80)
        shares = shares_at(config, step)
        assert shares.reward == pytest.approx(ramp)
        assert shares.kl == pytest.approx((1 - ramp) + ramp * 0.05)


def test_without_a_ramp_the_reward_terms_jump_in_after_warm_up():
    config = ObjectiveConfig(warmup_steps=3, ramp_steps=0, kl_floor=0.5)
    assert shares_at(config, 2) == Shares(kl=1.0, reward=0.0)
    assert shares_at(config, 3) == Shares(kl=0.5, reward=1.0)


def test_the_default_objective_is_kl_at_full_weight_from_the_first_step():
    for step in (0, 1, 1000):
        assert shares_at(ObjectiveConfig(), step).kl == 1.0


def test_the_baseline_follows_the_mean_reward():
    config = ObjectiveConfig(baseline_decay=0.9)
    assert next_baseline(0.5, 1.0, config) == pytest.approx(0.55)
    baseline = 0.0
    for _ in range(200):
        baseline = next_baseline(baseline, 0.7, config)
    assert baseline == pytest.approx(0.7, abs=1e-6)
