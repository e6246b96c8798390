"""What is counted of a version: proposals at the first position, and how many were accepted.

Owns the value type; does not know what is counted where.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstCounts:
    """Neural proposals at the first position of a round, and how many were accepted."""

    tried: float = 0.0
    accepted: float = 0.0

    def plus(self, hit: float) -> FirstCounts:
        """With one more."""
        return FirstCounts(self.tried + 1, self.accepted + hit)
