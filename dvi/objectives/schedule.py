"""The KL -> RL schedule: which share of its weight each term has at a step.

Owns two lines of arithmetic (DVI, arXiv 2510.05421); does not know the terms.
"""

from __future__ import annotations

from dataclasses import dataclass

from dvi.config.learning import ObjectiveConfig


@dataclass(frozen=True, slots=True)
class Shares:
    """Factors on the configured weights."""

    kl: float  # on kl_weight
    reward: float  # on reward_ce_weight, pg_weight and entropy_weight


def shares_at(config: ObjectiveConfig, step: int) -> Shares:
    """With W = warmup_steps, R = ramp_steps and t = clamp((step - W) / R, 0, 1):

    kl = (1 - t) + t * kl_floor (the paper's lambda_kl), reward = t (lambda_pg / its maximum).
    ``step`` counts optimizer steps done, from 0: steps 0 .. W are pure KL, the floor is reached at
    W + R. With R = 0 the ramp is a jump: step W is the first with all terms. ``ce_weight`` needs no
    reward and is not scheduled.
    """
    done = step - config.warmup_steps
    if config.ramp_steps == 0:
        ramp = 1.0 if done >= 0 else 0.0
    else:
        ramp = min(1.0, max(0.0, done / config.ramp_steps))
    return Shares(kl=1 - ramp * (1 - config.kl_floor), reward=ramp)


def next_baseline(baseline: float, mean_reward: float, config: ObjectiveConfig) -> float:
    """Moving average of the reward of judged proposals, one update an optimizer step."""
    return config.baseline_decay * baseline + (1 - config.baseline_decay) * mean_reward
