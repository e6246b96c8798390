"""The dashboard's routes and numbers, without a browser."""

from __future__ import annotations

import re
import runpy
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import serving.history
from serving.counts import ServerCounts
from serving.dashboard import HEADERS, STATIC, quantiles
from serving.histograms import Histogram
from serving.history import CURVES, MAX_POINTS, History, flat
from serving.metrics_source import stats_before_start
from serving.prometheus import MetricsSnapshot
from tests.serving.fakes import snapshot_of
from tests.serving.live import Live, live_server, tiny_config


def empty_snapshot() -> MetricsSnapshot:
    """Of a server that has done nothing."""
    return snapshot_of(stats_before_start(4), ServerCounts())


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("dashboard")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVI_API_KEY", "user-key")
        with live_server(tiny_config(tiny_model, folder / "state"), folder) as running:
            yield running


def test_the_page_and_its_files_are_open_hold_nothing_and_name_no_other_host(live: Live) -> None:
    names = ["/", *(f"/static/{path.name}" for path in STATIC.iterdir())]
    for name in names:
        answer = live.http.get(name)
        assert answer.status_code == 200
        assert all(answer.headers[key] == value for key, value in HEADERS.items())
        # The namespace of SVG is a name, not an address that anything loads.
        text = answer.text.replace("http://www.w3.org/2000/svg", "")
        assert re.search(r"https?:|//[a-z]+\.", text) is None, name
        assert "style=" not in text
    assert live.http.head("/").status_code == 200
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy


def test_files_outside_the_folder_are_not_served(live: Live) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/", "/static/none.js"):
        assert live.http.get(path).status_code in (401, 404), path


def test_the_numbers_want_a_key_and_hold_no_content(live: Live) -> None:
    assert live.http.get("/dashboard/data").status_code == 401
    key = {"Authorization": "Bearer user-key"}
    marker = "zanzibar"
    body = {"prompt": marker, "max_tokens": 8, "ignore_eos": True}
    live.http.post("/v1/completions", json=body, headers=key)
    answer = live.http.get("/dashboard/data", headers=key)
    data = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert data["now"]["dvi_generated_tokens"] == 8
    assert data["model"] == "tiny"
    assert marker not in answer.text
    assert "are kept for training" in data["content"]
    request = next(row for row in data["latency"] if row["name"] == "dvi_request_seconds")
    assert request["count"] == 1
    assert 0 < request["p50"] <= request["p95"] <= request["p99"]


def test_only_points_after_the_given_time_come(live: Live) -> None:
    key = {"Authorization": "Bearer user-key"}
    first = live.http.get("/dashboard/data", headers=key).json()
    assert first["points"]
    last = first["points"][-1]["time_s"]
    asked = f"/dashboard/data?series={first['series']}&since={last}"
    later = live.http.get(asked, headers=key).json()
    assert later["series"] == first["series"]
    assert all(point["time_s"] > last for point in later["points"])
    # What the page knows of a server before this one says nothing about this one's points.
    other = live.http.get("/dashboard/data?series=other&since=1e12", headers=key).json()
    assert other["points"][: len(first["points"])] == first["points"]
    for wrong in ("x", "nan", "inf"):
        answer = live.http.get(f"/dashboard/data?since={wrong}", headers=key)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "since")


def test_a_point_has_the_curves_and_the_oldest_points_leave() -> None:
    clock = iter(range(1, MAX_POINTS + 10))
    history = History(empty_snapshot, now_s=lambda: float(next(clock)))
    for _ in range(MAX_POINTS + 3):
        history.take()
    points = history.since(history.series, 0)
    assert [point["time_s"] for point in points] == [float(t) for t in range(4, MAX_POINTS + 4)]
    assert set(points[0]) == {"time_s", *CURVES}
    assert len(history.since(history.series, float(MAX_POINTS + 1))) == 2


def test_curves_go_on_while_the_wall_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = iter([2e9, 1e9, 0.0])
    monkeypatch.setattr(time, "time", lambda: next(wall))
    history = runpy.run_path(serving.history.__file__)["History"](empty_snapshot)
    for _ in range(3):
        history.take()
    times = [point["time_s"] for point in history.since("", 0.0)]
    assert len(times) == 3
    assert times == sorted(set(times))
    later = history.since(history.series, times[0])
    assert [point["time_s"] for point in later] == times[1:]


def test_flat_numbers_are_those_of_a_scrape() -> None:
    shot = replace(empty_snapshot(), replay_rows=7, traces_dropped={"queue_full": 3})
    values = flat(shot)
    assert values["dvi_replay_rows"] == 7
    assert values["dvi_traces_dropped{queue_full}"] == 3
    assert all("info" not in name for name in values)


def test_quantiles_are_linear_within_a_bucket_and_end_at_the_last_bound() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    assert quantiles(histogram.view()) == {"count": 0, "p50": None, "p95": None, "p99": None}
    histogram.observe(0.5, 10)
    histogram.observe(3.0, 10)
    found = quantiles(histogram.view())
    assert found["count"] == 20
    assert found["p50"] == pytest.approx(1.0)  # the 10th of 20 ends the first bucket
    assert found["p95"] == pytest.approx(2 + 2 * 9 / 10)  # the 19th: 9 of 10 into (2, 4]
    histogram.observe(99.0, 80)
    assert quantiles(histogram.view())["p95"] == 4.0
