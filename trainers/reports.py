"""What a step reports, and the mean of the reports of its parts.

Owns arithmetic on reports; does not know how a batch was cut into parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dvi.objectives import LossReport


@dataclass(frozen=True, slots=True)
class StepReport:
    """One call of the learner: an optimizer step, or a dropped one."""

    step: int  # optimizer steps done so far
    is_dropped: bool  # loss or gradient was not finite; nothing changed
    grad_norm: float  # before clipping; NaN when dropped
    loss: LossReport


def mean_report(reports: Sequence[LossReport]) -> LossReport:
    """The report of all parts of a batch together.

    Means over positions are exact. Loss and reward terms weigh the parts by their positions, as
    the gradient does; with one part (the usual case) everything is exact.
    """
    if len(reports) == 1:
        return reports[0]
    positions = sum(report.num_positions for report in reports)
    judged = sum(report.num_judged for report in reports)

    def over_positions(values: list[float]) -> float:
        pairs = zip(values, reports, strict=True)
        return sum(value * report.num_positions for value, report in pairs) / positions

    reward_sum = sum(report.reward * report.num_judged for report in reports)
    loss = over_positions([float(report.loss) for report in reports])
    return LossReport(
        loss=torch.tensor(loss, dtype=reports[0].loss.dtype),
        kl=over_positions([report.kl for report in reports]),
        ce=over_positions([report.ce for report in reports]),
        reward_ce=over_positions([report.reward_ce for report in reports]),
        pg=over_positions([report.pg for report in reports]),
        entropy=over_positions([report.entropy for report in reports]),
        osd=over_positions([report.osd for report in reports]),
        lk=over_positions([report.lk for report in reports]),
        agreement=over_positions([report.agreement for report in reports]),
        reward=reward_sum / max(judged, 1),
        num_positions=positions,
        num_judged=judged,
    )


def loss_values(report: LossReport) -> dict[str, float]:
    """The report as numbers for metrics."""
    return {
        "loss": float(report.loss),
        "kl": report.kl,
        "ce": report.ce,
        "reward_ce": report.reward_ce,
        "pg": report.pg,
        "entropy": report.entropy,
        "osd": report.osd,
        "lk": report.lk,
        "agreement": report.agreement,
        "reward": report.reward,
    }
