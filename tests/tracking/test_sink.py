from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dvi.config import TrackingConfig
from dvi.tracking import Alert, KeptAdapter, MetricRow, SinkThread, Tracker, make_tracker


class FakeSink:
    """Does what the test says, and remembers what came through."""

    name = "fake"
    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(
        self,
        on_open: Callable[[], object] = lambda: None,
        on_write: Callable[[], object] = lambda: None,
        on_close: Callable[[], object] = lambda: None,
    ) -> None:
        self.on_open = on_open
        self.on_write = on_write
        self.on_close = on_close
        self.rows: list[MetricRow] = []
        self.adapters: list[KeptAdapter] = []
        self.alerts: list[Alert] = []

    def open(self) -> None:
        self.on_open()

    def write(self, row: MetricRow) -> None:
        self.on_write()
        self.rows.append(row)

    def keep(self, adapter: KeptAdapter) -> None:
        self.on_write()
        self.adapters.append(adapter)

    def alert(self, alert: Alert) -> None:
        self.on_write()
        self.alerts.append(alert)

    def close(self) -> None:
        self.on_close()


def raise_oserror() -> None:
    raise OSError("no space left")


def started(sink: FakeSink, queue_rows: int = 1024) -> tuple[Tracker, SinkThread]:
    thread = SinkThread(sink, queue_rows)
    thread.start()
    return Tracker([thread], now_s=lambda: 5.0), thread


def test_rows_and_adapters_come_through_in_order(tmp_path: Path) -> None:
    sink = FakeSink()
    tracker, _ = started(sink)
    with tracker:
        for i in range(5):
            tracker.log("serve", {"tokens": i})
        tracker.artifact(12, tmp_path)
        tracker.alert("title", "text")
    assert sink.rows == [MetricRow(5.0, "serve", {"serve/tokens": i}) for i in range(5)]
    assert sink.adapters == [KeptAdapter(12, tmp_path)]
    assert sink.alerts == [Alert("title", "text")]


@pytest.mark.parametrize("where", ["on_open", "on_write", "on_close"])
def test_a_failing_sink_never_reaches_the_caller(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker, _ = started(FakeSink(**{where: raise_oserror}))
    with caplog.at_level(logging.WARNING), tracker:
        for i in range(20):
            tracker.log("serve", {"tokens": i})
    lost = {"on_open": 20.0, "on_write": 20.0, "on_close": 0.0}
    assert tracker.gauges() == {"tracking_rows_dropped": lost[where]}
    assert len(caplog.records) == 1  # warned once, not per row
    assert "no space left" in caplog.text


def test_an_error_that_nobody_foresaw_ends_only_the_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)

    def surprise() -> None:
        raise ZeroDivisionError

    tracker, thread = started(FakeSink(on_write=surprise))
    tracker.log("serve", {"tokens": 1})
    thread._thread.join(5)
    for i in range(10):
        tracker.log("serve", {"tokens": i})
    tracker.close()
    assert len(seen) == 1
    assert tracker.gauges()["tracking_rows_dropped"] >= 10


@pytest.mark.parametrize("where", ["on_open", "on_write", "on_close"])
def test_a_sink_that_hangs_holds_up_neither_log_nor_close(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dvi.tracking.make.CLOSE_TIMEOUT_S", 0.3)
    released = threading.Event()
    sink = FakeSink(**{where: lambda: released.wait(30)})
    tracker, _ = started(sink, queue_rows=10)
    began = time.monotonic()
    for i in range(1000):
        tracker.log("serve", {"tokens": i})
    tracker.close()
    # A thousand puts are milliseconds and close gives up after 0.3 s; waiting would be 30 s.
    assert time.monotonic() - began < 5.0
    if where != "on_close":
        # At most one row is in the hands of the hanging thread.
        assert tracker.gauges()["tracking_rows_dropped"] >= 999
    released.set()


def test_a_hanging_sink_keeps_no_row_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dvi.tracking.make.CLOSE_TIMEOUT_S", 0.5)
    released = threading.Event()
    good, bad = FakeSink(), FakeSink(on_open=lambda: released.wait(30))
    threads = [SinkThread(bad), SinkThread(good)]
    for thread in threads:
        thread.start()
    with Tracker(threads) as tracker:
        for i in range(10):
            tracker.log("serve", {"tokens": i})
        deadline = time.monotonic() + 5
        while len(good.rows) < 10 and time.monotonic() < deadline:
            time.sleep(0.005)
    assert len(good.rows) == 10
    released.set()


def test_a_folder_in_the_way_of_the_file_only_drops_rows(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with make_tracker(TrackingConfig(), tmp_path, "serve", {}) as tracker:
        for i in range(3):
            tracker.log("serve", {"tokens": i})
    assert tracker.gauges() == {"tracking_rows_dropped": 3.0}
