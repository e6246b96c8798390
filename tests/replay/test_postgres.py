"""What only PostgreSQL can get wrong: late commits, a server that goes, bytes of deleted rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from dvi.replay import ReplayStoreError, Selection, TraceWriter, advance, is_there, open_store
from dvi.replay.counters import lock_writer
from dvi.replay.encoding import encode
from dvi.replay.eviction import add_to_totals
from dvi.replay.inserting import NewRow, insert_rows
from dvi.replay.postgres import with_limits
from tests.postgres import Cluster
from tests.replay.fakes import make_store, make_trace, small_config
from tests.replay.test_file import MARKER, MARKER_BYTES
from tests.replay.test_processes import kill_rounds
from tests.replay.test_store import drain, ids
from tests.replay.test_writer import wait_until


def test_a_writer_that_commits_late_is_read_once_and_nothing_of_it_is_skipped(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [NewRow(make_trace(f"s{i}"), encode(make_trace(f"s{i}"))) for i in range(3)]
    with make_store(database) as store, make_store(database) as slow:
        with slow._database.changing() as connection:
            # The lock on the totals makes other writers wait; the reader must not rely on it.
            with monkeypatch.context() as patch:
                patch.setattr("dvi.replay.inserting.add_to_totals", lambda *_, **__: None)
                last = lock_writer(connection, "slow")
                insert_rows(connection, "slow", last, late, time.time())
            store.append("fast", [make_trace("f1"), make_trace("f2")])
            seen = store.read({}, 9)
            assert ids(seen) == ["f1", "f2"]
            cursor = advance({}, seen)
            add_to_totals(connection, 3, sum(row.num_bytes for row in late))
        assert ids(drain(store, cursor)) == ["s0", "s1", "s2"]  # older by their time of storing
        assert drain(store, cursor) == []
        assert store.stats().rows == 5


def test_kill_9_of_a_writer_loses_no_committed_trace(database: str) -> None:
    kill_rounds(database, num_rounds=2, seed=3)


def test_a_writer_that_stands_still_in_a_transaction_does_not_stop_the_others(
    database: str,
) -> None:
    options = "-cidle_in_transaction_session_timeout=200ms"
    stuck = make_url(database).update_query_dict({"options": options})
    with (
        make_store(database) as store,
        make_store(stuck.render_as_string(hide_password=False)) as frozen,
    ):

        def stand_still() -> None:
            with frozen._database.writing() as connection:
                assert store.append("a", [make_trace("1")]).written == 1  # after 0.2 s
                connection.exec_driver_sql("SELECT 1")

        with pytest.raises(ReplayStoreError, match="idle-in-transaction"):
            stand_still()
        assert frozen.append("b", [make_trace("2")]).written == 1  # a fresh connection


def test_a_purge_leaves_no_byte_of_the_rows_in_the_files(database: str, cluster: Cluster) -> None:
    with make_store(database) as store:
        store.append("a", [make_trace("before", 4), make_trace("secret", 40, fill=MARKER)])
        assert MARKER_BYTES in cluster.file_bytes()
        result = store.purge(Selection(request_id="secret"))
        assert (result.rows, result.overwritten) == (1, True)
        assert MARKER_BYTES not in cluster.file_bytes()
        assert ids(drain(store, {})) == ["before"]
        assert store.stats().purges == 1


def test_a_purge_beside_a_long_read_says_that_bytes_are_left(database: str) -> None:
    impatient = make_url(database).update_query_dict({"options": "-clock_timeout=200ms"})
    with (
        make_store(database) as store,
        make_store(impatient.render_as_string(hide_password=False)) as purger,
    ):
        store.append("a", [make_trace("secret")])
        with store._database.reading() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM contents")
            result = purger.purge(Selection(request_id="secret"))
            assert (result.rows, result.overwritten) == (1, False)
        assert purger.purge(Selection(request_id="secret")).overwritten


def test_the_size_on_disk_is_that_of_the_tables(database: str) -> None:
    with make_store(database) as store:
        empty = store.stats().file_bytes
        store.append("a", [make_trace(f"{i}", 40) for i in range(20)])
        grown = store.stats()
    assert grown.file_bytes - empty > 0.5 * grown.bytes  # the server compresses what it can


def test_text_that_the_database_refuses_costs_no_trace(place: Path | str) -> None:
    odd = replace(make_trace("r\0"), domain="a\0b\ud800")
    with make_store(place) as store:
        assert store.append("a", [make_trace("1"), odd, make_trace("2")]).written == 3
        assert store.append("a", [odd]).duplicates == 1
        assert [row.trace.domain for row in store.read({}, 9)] == ["sql", "a\ufffdb?", "sql"]


@pytest.fixture
def stoppable(cluster: Cluster) -> Iterator[Cluster]:
    """The server, running again afterwards."""
    yield cluster
    if cluster.process is None:
        cluster.start()


def test_a_server_that_goes_and_comes_back_costs_counted_traces_only(
    database: str, stoppable: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dvi.replay.writer._FIRST_PAUSE_S", 0.005)
    with make_store(database) as store:
        with TraceWriter(store, small_config()) as writer:
            writer.offer(make_trace("before"))
            wait_until(lambda: writer.counts().written == 1)
            stoppable.stop()
            for i in range(5):
                started = time.monotonic()
                writer.offer(make_trace(f"during-{i}"))
                assert time.monotonic() - started < 0.1  # the decode loop never waits
            wait_until(lambda: writer.counts().dropped["store_error"] == 5)
            assert "\n" not in writer.counts().last_error
            stoppable.start()
            writer.offer(make_trace("after"))
            wait_until(lambda: writer.counts().written == 2)
            assert writer.counts().last_error == ""
        assert ids(drain(store, {})) == ["before", "after"]


def test_a_restart_between_two_appends_is_not_even_an_error(
    database: str, stoppable: Cluster
) -> None:
    with make_store(database) as store:
        store.append("a", [make_trace("1")])
        stoppable.stop()
        stoppable.start()
        store.append("a", [make_trace("2")])
        assert [row.key.seq for row in store.read({}, 9)] == [1, 2]


def refusal(url: str) -> str:
    """What opening says; one line without the password."""
    with pytest.raises(ReplayStoreError) as caught:
        open_store(url, small_config())
    line = str(caught.value)
    assert "\n" not in line
    assert "hunter2" not in line
    return line


def test_what_is_wrong_with_the_server_is_one_clear_line(database: str, cluster: Cluster) -> None:
    name = make_url(database).database
    assert name is not None
    assert "password authentication failed" in refusal(cluster.url(name, "hunter2"))
    assert 'database "nowhere" does not exist' in refusal(cluster.url("nowhere"))
    closed = database.replace(f":{cluster.port}/", ":1/")
    assert "Connection refused" in refusal(closed)
    with pytest.raises(ReplayStoreError, match="Connection refused"):
        is_there(closed)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql+psycopg2://me:hunter2@h/d", r"write postgresql\+psycopg://"),
        ("mysql://me:hunter2@h/d", "mysql is not supported"),
        ("postgresql+psycopg://me:hunter2@h:port/d", "port is no number"),
    ],
)
def test_a_url_that_is_not_ours_says_what_to_write(url: str, word: str) -> None:
    with pytest.raises(ReplayStoreError, match=word):
        open_store(url, small_config())
    refusal(url)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "pip install 'dvi-serving[postgres]'" in refusal("postgresql+psycopg://me:hunter2@h/d")


def test_a_question_whether_a_store_is_there_makes_none(database: str, tmp_path: Path) -> None:
    assert not is_there(database)
    assert not is_there(f"sqlite:///{tmp_path / 'state' / 'replay.sqlite'}")
    assert list(tmp_path.iterdir()) == []
    url = make_url(database).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_tables WHERE schemaname='public'"
        ).fetchone() == (0,)
    with make_store(database):
        assert is_there(database)


def test_the_urls_own_limits_win_over_ours() -> None:
    url = make_url("postgresql+psycopg://h/d?connect_timeout=60&options=-clock_timeout%3D9s")
    limited = with_limits(url)
    assert limited.query["connect_timeout"] == "60"
    assert limited.query["tcp_user_timeout"] == "15000"
    options = limited.query["options"]
    assert isinstance(options, str)
    assert options.index("lock_timeout=5s") < options.index(
        "lock_timeout=9s"
    )  # the last one counts
