"""Mending priors by outcomes: a level and a slope on the scale of log odds.

Owns the two numbers and what is known of them; does not know what a prior is of. The level moves
all priors alike; a slope below one says that they tell less than they claim, zero that they tell
nothing. A Bayesian logistic regression (Gaussian posterior, extended Kalman update) that forgets.
"""

from __future__ import annotations

import math

from dvi.decoding.rate import Rate

# Variances before any outcome: a level of one (.5 may be .27 or .73), a slope of a half.
LEVEL_VARIANCE = 1.0
SLOPE_VARIANCE = 0.25


class Correction:
    """Begins from what ``parent`` says at the time; whoever owns that adds its outcomes."""

    def __init__(self, parent: Correction | None = None) -> None:
        self._parent = parent
        self._level = 0.0
        self._slope = 1.0 if parent is None else 0.0
        # Covariance of the two.
        self._ll, self._ls, self._ss = LEVEL_VARIANCE, 0.0, SLOPE_VARIANCE

    def value(self, prior: float) -> float:
        """The probability that ``prior``, in (0, 1), stands for."""
        level, slope = self._line()
        return 1 / (1 + math.exp(-level - slope * log_odds(prior)))

    def add(self, prior: float, *, hit: bool) -> None:
        """Take one outcome of a proposal with this prior."""
        x = log_odds(prior)
        rate = self.value(prior)
        weight = rate * (1 - rate)
        to_level, to_slope = self._ll + self._ls * x, self._ls + self._ss * x
        spread = 1 + weight * (to_level + to_slope * x)
        surprise = (hit - rate) / spread
        self._level += to_level * surprise
        self._slope += to_slope * surprise
        known = weight / spread
        self._ll = relaxed(self._ll - known * to_level * to_level, LEVEL_VARIANCE)
        self._ls = relaxed(self._ls - known * to_level * to_slope, 0.0)
        self._ss = relaxed(self._ss - known * to_slope * to_slope, SLOPE_VARIANCE)

    def _line(self) -> tuple[float, float]:
        level, slope = (0.0, 0.0) if self._parent is None else self._parent._line()
        return level + self._level, slope + self._slope


def log_odds(rate: float) -> float:
    """Of a probability in (0, 1)."""
    return math.log(rate / (1 - rate))


def relaxed(now: float, before: float) -> float:
    """Doubt comes back over as many outcomes as rates look back on."""
    return before + (now - before) * Rate.kept
