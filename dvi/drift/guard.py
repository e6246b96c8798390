"""Whether a version accepts significantly less than the one before it; pure arithmetic.

Owns the test; does not know registries. Domains are compared with themselves: traffic that moves
to a domain that the old version never saw says nothing about the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from dvi.drift.counts import FirstCounts

DESIGN_EFFECT = 2.0  # rounds of a request resemble each other: the variance is taken double


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two versions at the first position, over the domains that both have drafted for."""

    tried: float  # proposals of the new version in these domains
    before: float  # acceptance of the old version, in the new one's mix of domains
    after: float
    z: float  # standard errors; negative: the new version is worse

    @property
    def drop(self) -> float:
        """Acceptance lost."""
        return self.before - self.after


@dataclass(frozen=True, slots=True)
class GuardRule:
    """When a fall is one."""

    confidence: float  # one-sided, of each look; 0 never says so
    min_proposals: int
    min_drop: float

    def is_fall(self, found: Comparison) -> bool:
        """Enough seen, large, and hardly chance."""
        if self.confidence == 0 or found.tried < self.min_proposals:
            return False
        limit = NormalDist().inv_cdf(self.confidence)
        return found.drop >= self.min_drop and found.z <= -limit


def compare(
    new: Mapping[str, FirstCounts],
    old: Mapping[str, FirstCounts],
    design_effect: float = DESIGN_EFFECT,
) -> Comparison:
    """Cochran-Mantel-Haenszel over domains.

    z = sum_d (k_d - n_d m_d / N_d) / sqrt(design_effect * sum_d Var_d), Var_d = n_d o_d m_d
    (N_d - m_d) / (N_d^2 (N_d - 1)): n, k tried and accepted by the new version, o tried by the old
    one, m accepted by both, N tried by both.
    """
    shared = [(new[name], old[name]) for name in new if name in old]
    tried = sum(own.tried for own, _ in shared)
    if not tried:
        return Comparison(0.0, 0.0, 0.0, 0.0)
    excess = variance = before = 0.0
    for own, reference in shared:
        total = own.tried + reference.tried
        hits = own.accepted + reference.accepted
        excess += own.accepted - own.tried * hits / total
        if total > 1:
            spread = hits * (total - hits) / (total**2 * (total - 1))
            variance += own.tried * reference.tried * spread
        before += own.tried * reference.accepted / reference.tried
    z = excess / sqrt(design_effect * variance) if variance else 0.0
    after = sum(own.accepted for own, _ in shared)
    return Comparison(tried, before / tried, after / tried, z)
