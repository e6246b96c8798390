"""The saved view of W&B: every curve that it shows is one that is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dvi.objectives import LossReport
from dvi.registry import Registry
from dvi.tracking import Value
from dvi.tracking.base import make_row
from dvi.tracking.wandb_sink import AXES
from dvi.types import AcceptanceCounts, Source
from scripts.wandb_workspace import SECTIONS, main, workspace
from serving.counts import ServerCounts
from serving.metrics_source import stats_before_start
from serving.tracking_loop import TrackingLoop
from tests.serving.fakes import snapshot_of
from trainers.gate import Decision, GateRule, Scores, Verdict
from trainers.reports import StepReport, step_row
from trainers.run import TrainResult, tell_result
from trainers.scoring import Score


class Recorder:
    """A tracker that keeps names and alerts."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.alerts: list[tuple[str, str]] = []

    def log(self, family: str, row: Mapping[str, Value]) -> None:
        self.names |= set(make_row(family, row, 0.0).values)

    def alert(self, title: str, text: str) -> None:
        self.alerts.append((title, text))

    def artifact(self, version: int, folder: Path, aliases: tuple[str, ...] = ()) -> None:
        """Not looked at."""


def loop_on(tracker: Recorder) -> TrackingLoop:
    """A server's loop after one round of two proposals, one accepted."""
    counts = AcceptanceCounts()
    counts.add_round(Source.NEURAL, 2, 2, 1)
    stats = replace(stats_before_start(8), counts=counts, generated_tokens=2, adapter_version=1)
    shot = snapshot_of(stats, ServerCounts())
    return TrackingLoop(tracker, lambda: shot, lambda _: Path("none"), 1.0)


def logged_names() -> set[str]:
    """Every name that a server, its trainer's gate and a training run log."""
    tracker = Recorder()
    loop = loop_on(tracker)
    loop.log_once()
    loop.log_drift("data", 0.5, 0.25)
    report = LossReport(torch.tensor(1.0), *[0.0] * 9, num_positions=1, num_judged=1)
    tracker.log("train", step_row(StepReport(1, False, 1.0, report)))
    scores = Scores(Score(), Score(), Score())
    verdict = Verdict(Decision.HELD, scores, GateRule(0.9, 4), 0, 1)
    tracker.log("adapter", {"version": 1, **verdict.metrics()})
    tell_result(tracker, Registry(Path("none")), TrainResult(1, 1, 0, 1, 1, 0.0, 0.0))
    return tracker.names


def test_every_curve_of_the_view_is_logged_over_the_axis_of_its_family() -> None:
    logged = logged_names()
    for panels in SECTIONS.values():
        for panel in panels:
            assert {panel.axis, *panel.curves} <= logged, panel.title
            assert {AXES[curve.split("/")[0]] for curve in panel.curves} == {panel.axis}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the library's own, at its import
def test_the_view_is_one_that_the_library_takes() -> None:
    from wandb_workspaces.reports import v2 as reports

    view = workspace("me", "dvi")
    assert [section.name for section in view.sections] == list(SECTIONS)
    drawn = [panel for section in view.sections for panel in section.panels]
    assert all(isinstance(panel, reports.LinePlot) for panel in drawn)
    assert [panel.title for panel in drawn] == [p.title for ps in SECTIONS.values() for p in ps]


def test_without_an_entity_the_script_says_how_it_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    assert "usage: python scripts/wandb_workspace.py ENTITY" in capsys.readouterr().err


def test_drift_is_an_alert_that_names_its_kind_and_both_rates() -> None:
    tracker = Recorder()
    loop_on(tracker).log_drift("engine", 0.625, 0.25)
    ((title, text),) = tracker.alerts
    assert title == "dvi: engine drift"
    assert len(title) < 64  # what W&B takes
    assert "0.625 -> 0.250" in text
