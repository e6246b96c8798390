from __future__ import annotations

import random
import sqlite3
import struct
import time
from pathlib import Path

import pytest

from dvi.replay import ReplayStore, ReplayStoreError, RowKey, Selection
from dvi.replay.store import FILE_SHARE
from tests.replay.fakes import Place, make_store, make_trace, small_config

MARKER = 0x5EC2E7AB & 0x7FFFFFFF  # an id whose four bytes occur nowhere else
MARKER_BYTES = struct.pack("<i", MARKER)


def disk_bytes(folder: Path) -> int:
    """Database and log as the file system sees them; the index of the log holds no rows."""
    names = ("replay.sqlite", "replay.sqlite-wal")
    return sum((folder / name).stat().st_size for name in names if (folder / name).exists())


def content_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def fill(store: ReplayStore, num: int) -> None:
    for i in range(num):
        store.append("a", [make_trace(f"{i}", 40)])


def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with make_store(folder) as store:
        store.append("a", [make_trace("r")])
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert folder.stat().st_mode & 0o777 == 0o700
        assert set(modes) == {"replay.sqlite", "replay.sqlite-wal", "replay.sqlite-shm"}
        assert set(modes.values()) == {0o600}


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    with make_store(tmp_path):
        pass
    (tmp_path / "replay.sqlite").chmod(0o644)
    with make_store(tmp_path):
        assert (tmp_path / "replay.sqlite").stat().st_mode & 0o777 == 0o600


def test_every_connection_has_the_pragmas(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        engine = store._database.engine
        connections = [engine.connect() for _ in range(3)]
        for connection in connections:
            for pragma, value in (
                ("journal_mode", "wal"),
                ("synchronous", 1),  # NORMAL
                ("secure_delete", 1),
                ("auto_vacuum", 2),  # incremental
                ("journal_size_limit", 256 << 10),  # a sixteenth of 4 MiB
            ):
                assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one() == value
            connection.close()


def test_the_file_stays_within_its_bound_under_churn(tmp_path: Path) -> None:
    rng = random.Random(0)
    config = small_config(max_bytes=1 << 20)
    with make_store(tmp_path, config) as store:
        largest = 0
        for i in range(160):
            store.append("a", [make_trace(f"{i}", rng.choice((1, 3, 20, 60)))])
            if i % 20 == 0:
                store.set_kept([RowKey("a", rng.randrange(1, i + 2)) for _ in range(30)])
            largest = max(largest, disk_bytes(tmp_path))
        assert store.stats().bytes > 0.8 * config.max_bytes
        assert store.stats().file_bytes == disk_bytes(tmp_path)
    assert largest <= FILE_SHARE * config.max_bytes


def test_a_long_read_of_another_program_does_not_let_the_file_grow(tmp_path: Path) -> None:
    config = small_config(max_bytes=1 << 20)
    with make_store(tmp_path, config) as store:
        store.append("a", [make_trace("first", 20)])
        reader = sqlite3.connect(tmp_path / "replay.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM traces").fetchone()
        # 45 traces of 22 KB and the pages they touch are beyond 1.3 MiB of log.
        with pytest.raises(ReplayStoreError, match="long read"):
            fill(store, 45)
        assert store.stats().rows > 20  # what fits into the log was written
        assert disk_bytes(tmp_path) <= FILE_SHARE * config.max_bytes
        reader.execute("COMMIT")
        reader.close()
        assert store.append("a", [make_trace("after", 40)]).written == 1
        assert disk_bytes(tmp_path) <= FILE_SHARE * config.max_bytes


def test_the_file_shrinks_when_rows_grow_too_old(tmp_path: Path) -> None:
    now = time.time()
    config = small_config(max_age_days=1)
    with make_store(tmp_path, config, lambda: now) as store:
        store.append("a", [make_trace(f"{i}", 40) for i in range(100)])
        store.evict()
        full = disk_bytes(tmp_path)
    with make_store(tmp_path, config, lambda: now + 2 * 86_400) as store:
        assert store.evict() == 100
        # The spare share, a twentieth, and the empty tables.
        assert disk_bytes(tmp_path) < config.max_bytes / 20 + (100 << 10) < full


@pytest.mark.parametrize("how", ["size", "age", "purge"])
def test_bytes_of_rows_that_left_are_nowhere_in_the_files(tmp_path: Path, how: str) -> None:
    clock = [1_000_000.0]
    config = small_config(max_bytes=1 << 20, max_age_days=1)
    with make_store(tmp_path, config, lambda: clock[0]) as store:
        store.append("a", [make_trace("before", 4)])
        store.append("a", [make_trace("secret", 40, fill=MARKER)])
        store.evict()
        assert MARKER_BYTES in content_on_disk(tmp_path)
        if how == "size":
            for i in range(80):
                store.append("a", [make_trace(f"{i}", 40)])
        elif how == "age":
            clock[0] += 2 * 86_400
            store.evict()
        else:
            result = store.purge(Selection(request_id="secret"))
            assert (result.rows, result.overwritten) == (1, True)
            assert store.stats().rows == 1
        store._database.checkpoint()
        assert store.load([RowKey("a", 2)]) == []
        assert MARKER_BYTES not in content_on_disk(tmp_path)


def test_purge_meets_all_conditions_and_counts_first(place: Place) -> None:
    clock = [100.0]
    with make_store(place, now_s=lambda: clock[0]) as store:
        store.append("a", [make_trace("1", user_hash="u"), make_trace("2", user_hash="v")])
        clock[0] = 200.0
        store.append("a", [make_trace("3", user_hash="u"), make_trace("3", 4, 1, 0, "u")])
        store.set_kept([RowKey("a", 1)])
        assert store.count(Selection(request_id="3")) == 2
        assert store.count(Selection(user_hash="u")) == 3
        early = Selection(user_hash="u", stored_before_s=150.0)
        assert store.count(early) == 1
        assert store.purge(early).rows == 1
        assert [row.trace.request_id for row in store.read({}, 9)] == ["2", "3", "3"]
        with pytest.raises(ValueError, match="a time, a request or a user"):
            store.purge(Selection())


def test_purge_beside_a_long_read_says_that_bytes_are_left(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.append("a", [make_trace("secret", fill=MARKER)])
        reader = sqlite3.connect(tmp_path / "replay.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM traces").fetchone()
        assert not store.purge(Selection(request_id="secret")).overwritten
        reader.close()
        assert store.purge(Selection(request_id="secret")).overwritten
        assert MARKER_BYTES not in content_on_disk(tmp_path)
