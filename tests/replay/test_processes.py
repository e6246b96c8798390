from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dvi.replay import ReplayStore, RowKey, advance
from tests.replay.fakes import Place, make_store, make_trace, small_config

# fork: a fresh interpreter would cost seconds a child; no store is open at the fork.
CONTEXT = multiprocessing.get_context("fork")


def _append_many(place: Place, writer: str, num: int) -> None:
    with make_store(place) as store:
        for i in range(num):
            store.append(writer, [make_trace(f"{writer}-{i}", 4)])


def follow(store: ReplayStore, num_rows: int, timeout_s: float = 30.0) -> list[RowKey]:
    """Keys in the order of reading, until there are ``num_rows``."""
    cursor: dict[str, int] = {}
    keys: list[RowKey] = []
    deadline = time.monotonic() + timeout_s
    while len(keys) < num_rows:
        assert time.monotonic() < deadline
        rows = store.read(cursor, 7)
        cursor = advance(cursor, rows)
        keys += [row.key for row in rows]
    return keys


def test_a_reader_beside_writing_processes_skips_and_repeats_nothing(place: Place) -> None:
    names, num = ("a", "b", "c"), 20
    with make_store(place):
        pass
    processes = [CONTEXT.Process(target=_append_many, args=(place, n, num)) for n in names]
    for process in processes:
        process.start()
    with make_store(place) as store:
        keys = follow(store, num * len(names))
    for process in processes:
        process.join()
        assert process.exitcode == 0
    for name in names:
        assert [key.seq for key in keys if key.writer == name] == list(range(1, num + 1))


def _append_and_report(place: Place, start: int, pipe: Connection) -> None:
    with make_store(place, small_config(max_bytes=1 << 20)) as store:
        for i in range(start, start + 10_000):
            store.append("w", [make_trace(f"{i}", random.Random(i).randrange(1, 40))])
            pipe.send(i)  # after the commit: this one must not be lost


def kill_rounds(place: Place, num_rounds: int, seed: int) -> None:
    """Kill a writing process at random points; each time what it reported must be there."""
    rng = random.Random(seed)
    start = 0
    for _ in range(num_rounds):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(target=_append_and_report, args=(place, start, theirs))
        process.start()
        theirs.close()
        last = ours.recv()
        deadline = time.monotonic() + rng.random() * 0.25
        while time.monotonic() < deadline:
            if ours.poll(0.001):
                last = ours.recv()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        try:
            while True:
                last = ours.recv()
        except EOFError:
            pass
        start = _check_after_kill(place, last)


def _check_after_kill(place: Place, last: int) -> int:
    """Where the next process goes on."""
    with make_store(place, small_config(max_bytes=1 << 20)) as store:
        rows = store.read({}, 1000)
        names = [int(row.trace.request_id) for row in rows]
        seqs = [row.key.seq for row in rows]
        assert names[-1] in (last, last + 1)  # one commit may have gone unreported
        assert names == list(range(names[0], names[-1] + 1))
        assert seqs == list(range(seqs[0], seqs[-1] + 1))
        assert seqs[-1] == names[-1] + 1  # nothing was given a seq twice, and none was lost
        for row in rows:
            again = make_trace(row.trace.request_id, len(row.trace.output_ids))
            assert (row.trace.top_logits == again.top_logits).all()
        if isinstance(place, Path):
            with store._database.engine.connect() as connection:
                assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
    return names[-1] + 1


def test_kill_9_loses_no_committed_trace(tmp_path: Path) -> None:
    kill_rounds(tmp_path, num_rounds=5, seed=0)


@pytest.mark.slow
def test_kill_9_loses_no_committed_trace_in_many_rounds(tmp_path: Path) -> None:
    kill_rounds(tmp_path, num_rounds=60, seed=1)
