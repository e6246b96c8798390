"""Watching live acceptance for change."""

from dvi.drift.acceptance import AcceptanceDrift
from dvi.drift.guard import Comparison, GuardRule, compare
from dvi.drift.live import EndedRequest, FirstCounts, LiveAcceptance

__all__ = [
    "AcceptanceDrift",
    "Comparison",
    "EndedRequest",
    "FirstCounts",
    "GuardRule",
    "LiveAcceptance",
    "compare",
]
