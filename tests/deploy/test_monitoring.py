"""Dashboard and alert rules against the real /metrics: what they ask for is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from serving.counts import ServerCounts
from serving.metrics_source import stats_before_start
from serving.prometheus import render
from tests.deploy.promql import selectors
from tests.serving.fakes import MAX_DRAFT_LEN, snapshot_of

ROOT = Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
# Prometheus adds these to every series that it scrapes, and `up` for each server.
SCRAPED = {"job": "dvi", "instance": "127.0.0.1:8000"}


def series() -> list[tuple[str, dict[str, str]]]:
    """Every series that a server shows, with what Prometheus adds."""
    shot = snapshot_of(stats_before_start(MAX_DRAFT_LEN), ServerCounts())
    text = render(shot).decode()
    found = [
        (sample.name, {**sample.labels, **SCRAPED})
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    return [*found, ("up", SCRAPED)]


def dashboard() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "dvi.json").read_text())
    return data


def dashboard_expressions() -> Iterator[tuple[str, str]]:
    data = dashboard()
    for panel in data["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for annotation in data["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_selector_of_dashboard_and_alerts_matches_a_series_of_the_server() -> None:
    """A wrong metric, a wrong label and a value that no child has are all found this way."""
    shown = series()
    asked = [*dashboard_expressions(), *((r["alert"], r["expr"]) for r in alert_rules())]
    for title, expression in asked:
        wanted = selectors(expression)
        assert wanted, title
        for selector in wanted:
            named = [labels for name, labels in shown if name == selector.metric]
            assert named, f"{title}: no metric {selector.metric}"
            assert any(map(selector.admits, named)), f"{title}: no series like {selector}"
            for label, operator, value in selector.matchers:
                assert label in named[0], f"{title}: {selector.metric} has no label {label}"
                for part in value.split("|") if operator == "=~" and value != ".*" else ():
                    assert part in {labels[label] for labels in named}, f"{title}: {part}"


def test_labels_that_legends_and_summaries_name_come_out_of_their_expressions() -> None:
    """A label survives only where the expression keeps it: `sum by (a)` leaves a alone."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            kept = set(re.findall(r"by \(([^)]*)\)", target["expr"]))
            by = {name.strip() for group in kept for name in group.split(",")} - {"le"}
            assert named <= by if by else True, panel["title"]
            if re.match(r"(sum|avg|min|max)\(", target["expr"]):
                assert not named, panel["title"]
    for rule in alert_rules():
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert "instance" in named, rule["alert"]


def test_every_metric_of_the_server_is_on_the_dashboard() -> None:
    """But those that the dashboard leaves to whoever looks for them."""
    left_out = {
        "dvi_adapter_promoted_timestamp_seconds",
        "dvi_build_info",  # fills the list of servers
        "dvi_canary_decisions_total",
        "dvi_canary_first_accepted_tokens_total",
        "dvi_canary_first_proposed_tokens_total",
        "dvi_canary_rounds_total",
        "dvi_canary_version",
        "dvi_cancelled_tokens_total",
        "dvi_ignored_fields_total",
        "dvi_owed_rollbacks",  # an alert has it
        "dvi_probe_acceptance_rate",
        "dvi_proposed_tokens_per_position_total",
        "dvi_proposed_tokens_total",
        "dvi_queue_seconds_bucket",  # an alert has it
        "dvi_replay_rows",
        "dvi_request_acceptance_rate_bucket",
        "dvi_tracking_rows_dropped_total",  # an alert has it
        "dvi_trainer_payback_ratio",
    }
    asked = {s.metric for _, text in dashboard_expressions() for s in selectors(text)}
    ends = ("_sum", "_count")
    ours = {name for name, _ in series() if name.startswith("dvi_") and not name.endswith(ends)}
    assert ours - asked == left_out


def test_panels_lie_beside_each_other_on_a_grid_of_24() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "words", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_promtool_accepts_the_rules_and_they_fire_as_their_cases_say(words: tuple[str]) -> None:
    promtool = os.environ.get("DVI_PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool here (Debian: apt install prometheus, or DVI_PROMTOOL=PATH)")
    done = subprocess.run(
        [promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_explained_in_the_docs() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    for rule in alert_rules():
        assert f"`{rule['alert']}`" in page, rule["alert"]
