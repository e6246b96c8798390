"""Medians, spreads and ratios of repeated measurements.

Owns the arithmetic; does not know what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Repeats of one number."""

    median: float
    low: float
    high: float
    repeats: int

    def shown(self, digits: int) -> str:
        """Median and extremes."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}-{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of at least one value."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


def ratios(values: Sequence[float], base: Sequence[float]) -> Spread:
    """Spread of value / base, pair by pair: what both had in common in a repeat cancels."""
    return spread([value / other for value, other in zip(values, base, strict=True)])


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value with at least ``share`` of all values at or below it (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
