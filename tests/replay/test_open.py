from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from dvi.replay import ReplayStoreError, open_store
from dvi.replay.schema import SCHEMA_VERSION
from tests.replay.fakes import Place, make_store, make_trace, small_config


def test_a_store_of_a_newer_schema_is_refused_in_one_line(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.append("a", [make_trace("r")])
    with sqlite3.connect(tmp_path / "replay.sqlite") as connection:
        connection.execute("UPDATE dvi_schema SET version = ?", (SCHEMA_VERSION + 1,))
    with pytest.raises(ReplayStoreError, match=f"schema {SCHEMA_VERSION + 1}") as caught:
        make_store(tmp_path)
    assert "\n" not in str(caught.value)
    with sqlite3.connect(tmp_path / "replay.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM traces").fetchone() == (1,)


def test_what_is_not_a_store_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "replay.sqlite").write_bytes(b"no database at all, but long enough" * 100)
    with pytest.raises(ReplayStoreError, match="not a database") as caught:
        make_store(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["nonsense", "sqlite://", "sqlite:///:memory:", "mariadb-no://x/y", "/plain/path"]
)
def test_a_url_that_cannot_serve_two_processes_is_refused(url: str) -> None:
    with pytest.raises(ReplayStoreError, match=r"replay\.url"):
        open_store(url, small_config())


def test_no_password_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReplayStoreError) as caught:
        open_store("postgresql+nodriver://me:hunter2@localhost/x", small_config())
    assert "hunter2" not in str(caught.value)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReplayStoreError, match="file"):
        make_store(tmp_path / "file" / "state")


def _open_and_append(place: Place, writer: str) -> None:
    with make_store(place) as store:
        store.append(writer, [make_trace(f"from-{writer}")])


def make_together(place: Place) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_open_and_append, args=(place, f"w{i}")) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    with make_store(place) as store:
        assert store.stats().rows == 4


def test_processes_that_make_the_file_together_all_succeed(tmp_path: Path) -> None:
    for attempt in range(3):
        make_together(tmp_path / str(attempt))


def test_processes_that_make_the_tables_together_all_succeed(database: str) -> None:
    make_together(database)
