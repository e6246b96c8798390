"""Watching live acceptance for change."""

from dvi.drift.acceptance import AcceptanceDrift
from dvi.drift.counts import FirstCounts
from dvi.drift.guard import Comparison, GuardRule, compare
from dvi.drift.live import EndedRequest, LiveAcceptance
from dvi.drift.trial import Arms, CanaryRule, TrialCounts, TrialOutcome, Turn

__all__ = [
    "AcceptanceDrift",
    "Arms",
    "CanaryRule",
    "Comparison",
    "EndedRequest",
    "FirstCounts",
    "GuardRule",
    "LiveAcceptance",
    "TrialCounts",
    "TrialOutcome",
    "Turn",
    "compare",
]
