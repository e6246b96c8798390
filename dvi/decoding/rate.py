"""A rate from hits and outcomes, the newest first in weight.

Owns the decay; does not know what is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# Outcomes a rate looks back on. Long enough to tell .5 from .6, short enough to follow a stream.
WINDOW = 200.0
# Weight of what is believed before there are outcomes.
PRIOR_WEIGHT = 4.0


@dataclass(slots=True)
class Rate:
    """Decayed hits and outcomes."""

    hits: float = 0.0
    total: float = 0.0
    kept: ClassVar[float] = 1 - 1 / WINDOW  # of everything, at each outcome

    def add(self, *, hit: bool) -> None:
        """Count one outcome."""
        self.hits = self.hits * self.kept + hit
        self.total = self.total * self.kept + 1

    def value(self, prior: float, weight: float = PRIOR_WEIGHT) -> float:
        """The rate, leaning on ``prior`` as if it were ``weight`` outcomes."""
        return (self.hits + prior * weight) / (self.total + weight)

    def fade(self, share: float) -> None:
        """Believe what was counted only in part."""
        self.hits *= share
        self.total *= share
