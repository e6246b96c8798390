from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from sqlalchemy import event

from dvi.replay import AppendResult, ReplayStore, ReplayStoreError, TraceWriter
from dvi.types import Trace
from tests.replay.fakes import Place, make_store, make_trace, small_config


class FakeStore:
    """Appends what it is allowed to; ``script`` says what each call does."""

    store_id = "one"

    def __init__(self, script: Callable[[int], None] = lambda call: None) -> None:
        self.script = script
        self.calls = 0
        self.stored: list[str] = []

    def append(self, writer: str, new: Sequence[Trace]) -> AppendResult:
        self.calls += 1
        self.script(self.calls)
        self.stored += [trace.request_id for trace in new]
        return AppendResult(len(new), 0)

    def evict(self) -> int:
        return 0


def writer_on(store: FakeStore, queue_rows: int = 256) -> TraceWriter:
    config = replace(small_config(), queue_rows=queue_rows)
    return TraceWriter(cast(ReplayStore, store), config)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def fail(*_call: int) -> None:
    raise ReplayStoreError("disk full")


def test_offered_traces_reach_the_store_in_order(place: Place) -> None:
    with make_store(place) as store:
        with TraceWriter(store, small_config()) as writer:
            for i in range(50):
                writer.offer(make_trace(f"{i}"))
            writer.offer(make_trace("7"))
        rows = store.read({}, 99)
        assert [row.trace.request_id for row in rows] == [f"{i}" for i in range(50)]
        assert {row.key.writer for row in rows} == {writer.writer}
        counts = writer.counts()
        assert counts.written == 50
        assert counts.dropped == {"queue_full": 0, "store_error": 0, "duplicate": 1}


def test_two_writers_never_share_a_name() -> None:
    assert writer_on(FakeStore()).writer != writer_on(FakeStore()).writer


def test_a_stuck_store_never_makes_offer_wait() -> None:
    released = threading.Event()
    writer = writer_on(FakeStore(lambda call: cast(None, released.wait(20))), queue_rows=5)
    writer.start()
    trace = make_trace("r")
    writer.offer(trace)
    started = time.monotonic()
    for _ in range(1000):
        writer.offer(trace)
    # A thousand offers beside a stuck write are a few milliseconds; a wait would be 20 s.
    assert time.monotonic() - started < 2.0
    dropped = writer.counts().dropped["queue_full"]
    assert 1000 - 6 <= dropped <= 1000 - 5 + 1
    released.set()
    writer.close()
    assert writer.counts().written + dropped == 1001


def test_a_store_that_fails_for_a_while_loses_nothing() -> None:
    store = FakeStore(lambda call: fail() if call <= 2 else None)
    with writer_on(store) as writer:
        writer.offer(make_trace("1"))
        wait_until(lambda: writer.counts().written == 1)
    assert store.stored == ["1"]
    assert writer.counts().dropped == {"queue_full": 0, "store_error": 0, "duplicate": 0}
    assert writer.counts().last_error == ""


def test_a_store_that_stays_broken_is_counted_and_close_is_quick() -> None:
    store = FakeStore(fail)
    writer = writer_on(store)
    writer.start()
    for i in range(10):
        writer.offer(make_trace(f"{i}"))
    wait_until(lambda: writer.counts().last_error == "disk full")
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 2.0  # the back-off is cut short, not sat out
    assert writer.counts().dropped["store_error"] == 10
    assert writer.counts().written == 0


def test_close_gives_up_on_a_store_that_hangs() -> None:
    released = threading.Event()
    writer = writer_on(FakeStore(lambda call: cast(None, released.wait(20))))
    writer.start()
    writer.offer(make_trace("hangs"))
    time.sleep(0.05)
    writer.offer(make_trace("waits"))
    started = time.monotonic()
    writer.close(timeout_s=0.2)
    assert time.monotonic() - started < 2.0
    assert writer.counts().dropped["store_error"] == 1  # the one that was still waiting
    writer.offer(make_trace("late"))
    assert writer.counts().dropped["queue_full"] == 1
    released.set()


def test_a_malformed_trace_goes_alone(place: Place) -> None:
    broken = make_trace("broken")
    broken = replace(broken, logsumexp=broken.logsumexp[:-1])
    with make_store(place) as store:
        writer = TraceWriter(store, small_config())
        for trace in (make_trace("1"), broken, make_trace("2")):
            writer.offer(trace)  # before the start: one batch
        with writer:
            wait_until(lambda: writer.counts().written == 2)
        assert [row.trace.request_id for row in store.read({}, 9)] == ["1", "2"]
        assert writer.counts().dropped["store_error"] == 1


def test_a_locked_database_delays_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dvi.replay.sqlite.BUSY_TIMEOUT_S", 0.05)
    with make_store(tmp_path) as store, make_store(tmp_path) as other:
        with TraceWriter(store, small_config()) as writer:
            with other._database.writing():
                writer.offer(make_trace("r"))
                wait_until(lambda: "locked" in writer.counts().last_error)
            wait_until(lambda: writer.counts().written == 1)
        assert sum(writer.counts().dropped.values()) == 0


def limit_pages(store: ReplayStore, limit: list[int]) -> None:
    """From now on the store's connections answer as on a disk with ``limit[0]`` pages."""

    @event.listens_for(store._database.engine, "checkout")
    def on_checkout(connection: sqlite3.Connection, *_args: object) -> None:
        connection.execute(f"PRAGMA max_page_count={limit[0]}")


def test_a_full_disk_delays_is_counted_and_is_survived(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        limit = [40]  # 160 KB: the tables and three traces of 22 KB, not ten
        limit_pages(store, limit)
        writer = TraceWriter(store, small_config())
        for i in range(10):
            writer.offer(make_trace(f"{i}", 40))
        with writer:
            wait_until(lambda: "full" in writer.counts().last_error)
            assert store.stats().rows == 0  # a batch is there as a whole or not at all
            limit[0] = 1 << 20
            wait_until(lambda: writer.counts().written == 10)
        assert [row.key.seq for row in store.read({}, 99)] == list(range(1, 11))
        assert sum(writer.counts().dropped.values()) == 0


def test_a_failing_checkpoint_does_not_undo_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> bool:
        raise OSError("input/output error")

    monkeypatch.setattr("dvi.replay.sqlite.SqliteFile.checkpoint", refuse)
    with make_store(tmp_path) as store:
        # 30 traces of 22 KB are beyond the log's limit, so a checkpoint is tried.
        result = store.append("a", [make_trace(f"{i}", 40) for i in range(30)])
        assert result == AppendResult(written=30, duplicates=0)
        assert store.stats().rows == 30


def test_a_batch_stays_small_against_the_store() -> None:
    store = FakeStore()
    config = small_config(max_bytes=1 << 20)  # a 32nd is 32 KB, 64 tokens
    writer = TraceWriter(cast(ReplayStore, store), config)
    for i in range(40):
        writer.offer(make_trace(f"{i}", 32))
    with writer:
        wait_until(lambda: writer.counts().written == 40)
    assert store.calls == 20
