"""Loss terms, their schedule, and the loss of one optimizer step; pure functions."""

from dvi.objectives.loss import Judged, LossReport, Teacher, total_loss
from dvi.objectives.schedule import Shares, next_baseline, shares_at

__all__ = ["Judged", "LossReport", "Shares", "Teacher", "next_baseline", "shares_at", "total_loss"]
