"""The gate's decision on one candidate.

Owns the rule; a pure function of two scores on the same held-out traces.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from trainers.scoring import Score


class Decision(StrEnum):
    """What becomes of a candidate."""

    PROMOTED = "promoted"  # published and put into service
    HELD = "held"  # published, not in service
    REFUSED = "refused"  # not published


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision with both numbers it rests on."""

    decision: Decision
    candidate: Score
    served: Score
    served_version: int
    num_traces: int

    def metrics(self) -> dict[str, float]:
        """For the manifest and the tracker."""
        return {
            "candidate_agreement": self.candidate.agreement,
            "served_agreement": self.served.agreement,
            "served_version": self.served_version,
            "holdout_traces": self.num_traces,
            "holdout_positions": self.candidate.num_positions,
            "gate_promoted": float(self.decision is Decision.PROMOTED),
        }


def decide(candidate: Score, served: Score, margin: float) -> Decision:
    """Promote what is finite and at most ``margin`` of acceptance worse than what is in service.

    Equal is promoted: the candidate has seen more.
    """
    if not candidate.is_finite:
        return Decision.REFUSED
    if not served.is_finite or candidate.agreement >= served.agreement - margin:
        return Decision.PROMOTED
    return Decision.HELD
