"""The store's file removed, replaced, put back or altered below us, and clocks that jump."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from dvi.replay import (
    ReplayStore,
    ReplayStoreError,
    RowKey,
    TraceWriter,
    advance,
    default_url,
    open_store,
)
from dvi.replay.clock import BELIEVED_AFTER_S, SteadyClock
from dvi.replay.encoding import DamagedTrace, decode, encode
from tests.replay.fakes import make_store, make_trace, small_config
from tests.replay.test_writer import wait_until

NUM_HURT = 20


def names(store: ReplayStore) -> list[str]:
    return [row.trace.request_id for row in store.read({}, 99)]


def remove_all(folder: Path) -> None:
    for path in folder.glob("replay.sqlite*"):
        path.unlink()


def remove_file_only(folder: Path) -> None:
    """Its log stays: it must not be played into the next file."""
    (folder / "replay.sqlite").unlink()


def replace_file(folder: Path) -> None:
    with make_store(folder / "other") as other:
        other.append("theirs", [make_trace("another")])
    remove_all(folder)
    (folder / "other" / "replay.sqlite").rename(folder / "replay.sqlite")


@pytest.mark.parametrize("damage", [remove_all, remove_file_only, replace_file])
def test_a_removed_file_is_noticed_by_everyone_and_nothing_is_written_into_the_void(
    tmp_path: Path, damage
) -> None:
    with make_store(tmp_path) as ours, make_store(tmp_path) as reader:
        with TraceWriter(ours, small_config()) as writer:
            writer.offer(make_trace("before"))
            wait_until(lambda: writer.counts().written == 1)
            cursor = advance({}, reader.read({}, 9))
            first_name = writer.writer
            damage(tmp_path)
            for i in range(4):
                writer.offer(make_trace(f"{i}"))
            wait_until(lambda: writer.counts().written == 5)
            assert writer.counts().dropped["store_error"] == 0
        # A reader with its old cursor misses none of them, though seqs began anew.
        with pytest.raises(ReplayStoreError, match="removed or replaced"):
            reader.read(cursor, 9)
        assert [row.trace.request_id for row in reader.read(cursor, 9)][-4:] == list("0123")
        assert writer.writer != first_name
    with make_store(tmp_path) as opened:
        assert names(opened)[-4:] == list("0123")
        assert "before" not in names(opened)
        check = opened._database.engine.connect()
        assert check.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        check.close()


def test_a_folder_that_goes_and_comes_back_loses_nothing_and_is_not_made_meanwhile(
    tmp_path: Path,
) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    with make_store(folder) as store, TraceWriter(store, small_config()) as writer:
        writer.offer(make_trace("before"))
        wait_until(lambda: writer.counts().written == 1)
        folder.rename(away)
        writer.offer(make_trace("during"))
        wait_until(lambda: "gone" in writer.counts().last_error)
        with pytest.raises(ReplayStoreError, match="gone"):
            store.stats()
        assert not folder.exists()
        away.rename(folder)
        wait_until(lambda: writer.counts().written == 2)
        assert names(store) == ["before", "during"]
        assert sum(writer.counts().dropped.values()) == 0


def test_an_altered_bit_anywhere_in_a_row_is_found() -> None:
    content = encode(make_trace("r", 5))
    decode("r", "", "", content)
    for field in ("prompt_ids", "output_ids", "top_ids", "top_logits", "logsumexp", "rounds"):
        data = bytearray(getattr(content, field))
        data[len(data) // 2] ^= 4
        with pytest.raises(DamagedTrace):
            decode("r", "", "", replace(content, **{field: bytes(data)}))
    for at in range(0, len(content.header), 7):
        bit = chr(ord(content.header[at]) ^ 1)
        altered = content.header[:at] + bit + content.header[at + 1 :]
        with pytest.raises(DamagedTrace):
            decode("r", "", "", replace(content, header=altered))


def test_rows_of_an_older_store_have_no_checksum_and_are_read() -> None:
    content = encode(make_trace("r", 5))
    unsealed = content.unsealed()
    assert "crc32" not in unsealed.header
    again = decode("r", "sql", "", unsealed)
    assert again.output_ids == make_trace("r", 5).output_ids


def alter_rows(folder: Path, store: ReplayStore, request_ids: set[str]) -> None:
    """One byte of each row's content, as a disk does it: no checksum of SQLite's own tells."""
    del folder
    with store._database.writing() as connection:
        for name in request_ids:
            connection.exec_driver_sql(
                "UPDATE contents SET top_ids = zeroblob(length(top_ids)) WHERE (writer, seq) IN "
                "(SELECT writer, seq FROM traces WHERE request_id = ?)",
                (name,),
            )
            connection.exec_driver_sql(
                "UPDATE contents SET header = CAST(x'ff' AS TEXT) || header WHERE (writer, seq) IN "
                "(SELECT writer, seq FROM traces WHERE request_id = ?)",
                (name,),
            )


def test_damaged_rows_are_passed_over_and_hide_no_other(tmp_path: Path) -> None:
    with make_store(tmp_path) as store:
        store.append("w", [make_trace(f"{i}") for i in range(12)])
        alter_rows(tmp_path, store, {"0", "3", "4", "5", "6", "11"})
        seen: list[str] = []
        cursor: dict[str, int] = {}
        while rows := store.read(cursor, 2):  # a page of damaged rows alone is not the end
            cursor = advance(cursor, rows)
            seen += [row.trace.request_id for row in rows]
        assert seen == ["1", "2", "7", "8", "9", "10"]
        keys = [RowKey("w", seq) for seq in (1, 2, 4)]
        assert [row.key.seq for row in store.load(keys)] == [2]


def test_flipped_bytes_in_the_file_are_errors_of_one_line_or_rows_passed_over(
    tmp_path: Path,
) -> None:
    """Never another exception, never an altered trace."""
    folder = tmp_path / "whole"
    with make_store(folder) as store:
        store.append("w", [make_trace(f"{i}") for i in range(20)])
        store._database.checkpoint()
    data = (folder / "replay.sqlite").read_bytes()
    rng = random.Random(0)
    fates: Counter[str] = Counter()
    for number in range(NUM_HURT):
        hurt = tmp_path / f"{number}"
        hurt.mkdir()
        altered = bytearray(data)
        start = rng.randrange(4096, len(data))
        if number % 2:
            start -= start % 4096  # the head of a page, where SQLite looks first
        altered[start : start + 8] = rng.randbytes(len(altered[start : start + 8]))
        (hurt / "replay.sqlite").write_bytes(altered)
        with suppress(ReplayStoreError), make_store(hurt) as store:
            fates["opened"] += 1
            store.append("w", [make_trace("new")])
            for row in store.read({}, 99):
                again = make_trace(row.trace.request_id)
                assert row.trace.output_ids == again.output_ids
                assert (row.trace.top_logits == again.top_logits).all()
                fates["rows"] += 1
            fates["usable"] += 1
        shutil.rmtree(hurt)
    assert 0 < fates["usable"] < NUM_HURT, fates
    assert fates["rows"] > fates["usable"], fates


class Clocks:
    """A wall clock that somebody sets, and one that nobody can."""

    def __init__(self) -> None:
        self.wall_s, self.boot_s = 1_000_000.0, 50.0
        self.clock = self.started()

    def started(self, newest_s: float = 0.0) -> SteadyClock:
        """The clock of a process that starts now."""
        return SteadyClock(newest_s, lambda: self.wall_s, lambda: self.boot_s)

    def pass_s(self, seconds: float) -> None:
        self.wall_s += seconds
        self.boot_s += seconds


def test_a_jump_of_the_clock_is_believed_only_after_it_has_lasted() -> None:
    clocks = Clocks()
    clocks.pass_s(10.0)
    assert clocks.clock() == 1_000_010.0
    for jump_s in (40 * 86_400.0, -40 * 86_400.0):
        before_s = clocks.clock()
        clocks.wall_s += jump_s
        assert clocks.clock() == before_s
        clocks.pass_s(BELIEVED_AFTER_S - 1)
        assert clocks.clock() == before_s + BELIEVED_AFTER_S - 1
        clocks.pass_s(2)
        assert clocks.clock() == before_s + jump_s + BELIEVED_AFTER_S + 1


def test_a_jump_that_is_put_right_is_forgotten_and_small_steps_are_followed() -> None:
    clocks = Clocks()
    clocks.wall_s += 1e6
    assert clocks.clock() == 1_000_000.0
    clocks.wall_s -= 1e6
    clocks.pass_s(BELIEVED_AFTER_S)
    assert clocks.clock() == clocks.wall_s
    clocks.wall_s += 1e6  # the doubt begins anew
    clocks.pass_s(1.0)
    assert clocks.clock() == clocks.wall_s - 1e6
    clocks.wall_s -= 1e6 + 0.5  # what NTP does
    assert clocks.clock() == clocks.wall_s


def test_a_clock_that_jumps_ahead_erases_nothing(tmp_path: Path) -> None:
    clocks = Clocks()
    config = small_config(max_age_days=1)
    with make_store(tmp_path, config, clocks.clock) as store:
        store.append("w", [make_trace("old")])
        clocks.wall_s += 400 * 86_400
        assert store.evict() == 0
        store.append("w", [make_trace("new")])
        clocks.wall_s -= 400 * 86_400
        assert names(store) == ["old", "new"]
        clocks.pass_s(2 * 86_400)  # time that passed counts
        assert store.evict() == 2


def test_rows_that_were_dated_ahead_neither_outlive_the_age_bound_nor_pass_for_newest(
    tmp_path: Path,
) -> None:
    clocks = Clocks()
    clocks.wall_s += 400 * 86_400  # wrong since before the start
    with make_store(tmp_path, small_config(max_age_days=1), clocks.started()) as store:
        ahead = store.append("w", [make_trace("ahead")])
        clocks.wall_s -= 400 * 86_400
        clocks.pass_s(1.0)
        store.evict()
        clocks.pass_s(BELIEVED_AFTER_S)
        store.append("w", [make_trace("after")])
        assert [key.seq for key in store.newest(2)] == [ahead.written + 1, ahead.written]
        clocks.pass_s(86_400 - 1)
        assert store.evict() == 0
        clocks.pass_s(2)
        assert store.evict() == 2


def test_a_clock_that_starts_in_the_past_dates_no_row_before_those_that_are_there(
    tmp_path: Path,
) -> None:
    an_hour_ahead = time.time() + 3600.0
    with make_store(tmp_path, now_s=lambda: an_hour_ahead) as store:
        store.append("w", [make_trace("before")])
    with open_store(default_url(tmp_path), small_config()) as store:
        store.append("w", [make_trace("after")])
        stats = store.stats()
        assert stats.oldest_s == an_hour_ahead
        assert stats.newest_s is not None
        assert stats.newest_s > an_hour_ahead


def test_a_clock_that_started_in_the_past_is_believed_after_an_hour() -> None:
    clocks = Clocks()
    clock = clocks.started(newest_s=clocks.wall_s + 86_400)
    assert clock() == clocks.wall_s + 86_400
    clocks.pass_s(BELIEVED_AFTER_S + 1)
    assert clock() == clocks.wall_s
