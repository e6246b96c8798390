"""What a step reports, the mean of the reports of its parts, and its row for the tracker.

Owns arithmetic on reports; does not know how a batch was cut into parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dvi.objectives import LossReport

# Of a report, those that are means over positions or weigh like them.
TERMS = ("loss", "kl", "ce", "reward_ce", "pg", "entropy", "osd", "lk", "agreement")


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
    reward_sum = sum(report.reward * report.num_judged for report in reports)
    weighted = [(loss_values(report), report.num_positions) for report in reports]
    means = {
        name: sum(values[name] * weight for values, weight in weighted) / positions
        for name in TERMS
    }
    return LossReport(
        loss=torch.tensor(means.pop("loss"), dtype=reports[0].loss.dtype),
        reward=reward_sum / max(judged, 1),
        num_positions=positions,
        num_judged=judged,
        **means,
    )


def loss_values(report: LossReport) -> dict[str, float]:
    """The report as numbers for metrics."""
    return {name: float(getattr(report, name)) for name in (*TERMS, "reward")}


def step_row(report: StepReport) -> dict[str, float | int]:
    """One step for the tracker; what is not finite has no place in a curve."""
    values = {**loss_values(report.loss), "grad_norm": report.grad_norm}
    finite = {f"train/{name}": value for name, value in values.items() if math.isfinite(value)}
    return {"train/step": report.step, **finite}
