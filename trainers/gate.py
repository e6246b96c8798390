"""The gate's decision on one candidate.

Owns the rule; a pure function of scores on the same held-out traces, which no step has seen. Does
not know how they were made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import comb

from trainers.scoring import Score

WORTHLESS_CONFIDENCE = 0.99  # that the version in service is worse than none: it is taken out


class Decision(StrEnum):
    """What becomes of a candidate."""

    PROMOTED = "promoted"  # published and put into service
    HELD = "held"  # published, not in service
    REFUSED = "refused"  # not published


@dataclass(frozen=True, slots=True)
class GateRule:
    """What a candidate has to show."""

    confidence: float  # in [0, 1) that it is better than what serves; 0 promotes all that is finite
    draft_len: int  # K of the predicted accepted length, >= 1


@dataclass(frozen=True, slots=True)
class Scores:
    """Three drafts on the same traces."""

    candidate: Score
    served: Score
    untrained: Score  # version 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision with the numbers it rests on."""

    decision: Decision
    scores: Scores
    rule: GateRule
    served_version: int
    num_traces: int

    @property
    def candidate(self) -> Score:
        """What was decided about."""
        return self.scores.candidate

    @property
    def served(self) -> Score:
        """What it was compared with."""
        return self.scores.served

    @property
    def is_served_worthless(self) -> bool:
        """The version in service is worse than the untrained draft, and not being replaced."""
        return (
            self.served_version > 0
            and self.decision is not Decision.PROMOTED
            and confidence_of_better(self.scores.untrained, self.served) >= WORTHLESS_CONFIDENCE
        )

    def metrics(self) -> dict[str, float]:
        """For the manifest and the tracker."""
        scores, draft_len = self.scores, self.rule.draft_len
        return {
            "candidate_agreement": scores.candidate.agreement,
            "served_agreement": scores.served.agreement,
            "untrained_agreement": scores.untrained.agreement,
            "candidate_accepted_length": accepted_length(scores.candidate.hits, draft_len),
            "served_accepted_length": accepted_length(scores.served.hits, draft_len),
            "gate_draft_len": draft_len,
            "gate_confidence": confidence_of_better(scores.candidate, scores.served),
            "gate_confidence_wanted": self.rule.confidence,
            "served_version": self.served_version,
            "holdout_traces": self.num_traces,
            "holdout_positions": scores.candidate.num_positions,
            "gate_promoted": float(self.decision is Decision.PROMOTED),
        }


def decide(scores: Scores, rule: GateRule) -> Decision:
    """Promote a finite candidate that is better than what serves, and no worse than no training.

    Better: its predicted accepted length is not below that of the version in service, and with
    ``rule.confidence`` its agreement is above. A candidate that is held goes on learning: its lead
    over what serves grows until few positions show it, so that caution delays and never stalls.
    """
    candidate, served, untrained = scores.candidate, scores.served, scores.untrained
    if not candidate.is_finite:
        return Decision.REFUSED
    if rule.confidence == 0 or not served.is_finite:
        return Decision.PROMOTED
    length = accepted_length(candidate.hits, rule.draft_len)
    if length < accepted_length(untrained.hits, rule.draft_len):
        return Decision.HELD
    if length < accepted_length(served.hits, rule.draft_len):
        return Decision.HELD
    is_sure = confidence_of_better(candidate, served) >= rule.confidence
    return Decision.PROMOTED if is_sure else Decision.HELD


def stricter(rule: GateRule, num_rollbacks: int) -> GateRule:
    """Each recent rollback halves the doubt that is allowed: hysteresis."""
    if rule.confidence == 0:
        return rule
    return GateRule(1 - (1 - rule.confidence) / 2**num_rollbacks, rule.draft_len)


def confidence_of_better(one: Score, other: Score) -> float:
    """One minus the chance that equal drafts differ so much in favour of ``one``, in [0, 1].

    Exact one-sided binomial (sign test) on the positions that exactly one of the two gets right:
    under equality each is a fair coin. Positions of a trace resemble each other, so it is the upper
    end of what is known; the live guard has the last word.
    """
    pairs = [
        (a, b)
        for mine, theirs in zip(one.hits, other.hits, strict=True)
        for a, b in zip(mine, theirs, strict=True)
    ]
    better = sum(a and not b for a, b in pairs)
    worse = sum(b and not a for a, b in pairs)
    return 1 - upper_tail(better, better + worse)


def upper_tail(heads: int, coins: int) -> float:
    """Chance of at least so many heads of fair coins."""
    return sum(comb(coins, k) for k in range(heads, coins + 1)) / (1 << coins)


def accepted_length(hits: Sequence[Sequence[bool]], draft_len: int) -> float:
    """Predicted tokens a round, the target's own included, of rounds of ``draft_len`` proposals.

    Walks each trace as live rounds would: the accepted prefix, then one token of the target.
    """
    tokens = rounds = 0
    for trace in hits:
        start = 0
        while start < len(trace):
            accepted = 0
            while accepted < draft_len and start + accepted < len(trace):
                if not trace[start + accepted]:
                    break
                accepted += 1
            start += accepted + 1
            rounds += 1
        tokens += len(trace)
    return tokens / rounds if rounds else 1.0
