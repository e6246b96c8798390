from __future__ import annotations

import random

import numpy as np
import pytest
from sqlalchemy import event, func, select

from dvi.replay import ReplayStore, RowKey, StoredTrace, advance
from dvi.replay.eviction import KEPT_SHARE
from dvi.replay.schema import GONE, totals, traces, writers
from tests.replay.fakes import Place, make_store, make_trace, small_config


class Clock:
    """Seconds that only a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def ids(rows: list[StoredTrace]) -> list[str]:
    return [row.trace.request_id for row in rows]


def drain(store: ReplayStore, cursor: dict[str, int], max_rows: int = 3) -> list[StoredTrace]:
    """Everything behind ``cursor``, which moves."""
    rows: list[StoredTrace] = []
    while page := store.read(cursor, max_rows):
        rows += page
        cursor.update(advance(cursor, page))
    return rows


def test_rows_come_back_in_order_and_once(place: Place) -> None:
    with make_store(place) as store:
        for i in range(5):
            store.append("a", [make_trace(f"a{i}"), make_trace(f"a{i}x")])
        cursor: dict[str, int] = {}
        rows = drain(store, cursor)
        assert [row.key for row in rows] == [RowKey("a", seq) for seq in range(1, 11)]
        assert ids(rows) == [f"a{i // 2}{'x' * (i % 2)}" for i in range(10)]
        assert drain(store, cursor) == []


def test_a_cursor_survives_reopening_and_sees_only_news(place: Place) -> None:
    cursor: dict[str, int] = {}
    with make_store(place) as store:
        store.append("a", [make_trace("1")])
        drain(store, cursor)
        first_id = store.store_id
    with make_store(place) as store:
        assert store.store_id == first_id
        store.append("a", [make_trace("2")])
        assert ids(drain(store, cursor)) == ["2"]


def test_several_writers_are_merged_by_time_and_each_kept_in_order(place: Place) -> None:
    clock = Clock()
    with make_store(place, now_s=clock) as store:
        for i in range(6):
            clock.now_s += 1
            store.append("ab"[i % 2], [make_trace(f"{i}")])
        assert ids(drain(store, {}, max_rows=2)) == ["0", "1", "2", "3", "4", "5"]
        clock.now_s -= 100  # a clock set back must not reorder one writer's rows
        store.append("a", [make_trace("late")])
        rows = drain(store, {}, max_rows=2)
    assert [row.key.seq for row in rows if row.key.writer == "a"] == [1, 2, 3, 4]
    assert [row.key.seq for row in rows if row.key.writer == "b"] == [1, 2, 3]


def known_writers(store: ReplayStore) -> set[str]:
    with store._database.reading() as connection:
        return set(connection.execute(select(writers.c.writer)).scalars())


def test_a_writer_is_forgotten_with_its_last_row_and_may_still_come_back(place: Place) -> None:
    clock = Clock()
    with make_store(place, small_config(max_age_days=1), clock) as store:
        for i in range(5):
            store.append(f"gone-{i}", [make_trace(f"{i}-{j}") for j in range(i + 1)])
        cursor: dict[str, int] = {}
        assert len(drain(store, cursor)) == 1 + 2 + 3 + 4 + 5
        clock.now_s += 86_400 + 1
        store.append("alive", [make_trace("now")])
        assert known_writers(store) == {"alive", GONE}
        assert ids(drain(store, {})) == ids(drain(store, cursor)) == ["now"]
        store.append("gone-3", [make_trace("late")])  # it was stopped for a day
        assert ids(drain(store, cursor)) == ["late"]
        assert cursor["gone-3"] > 4


def test_no_seq_is_given_out_twice_and_each_row_is_read_once_while_writers_come_and_go(
    place: Place,
) -> None:
    rng = random.Random(7)
    clock = Clock()
    read: list[RowKey] = []
    cursor: dict[str, int] = {}
    with make_store(place, small_config(max_age_days=0.001), clock) as store:  # 86 s
        for step in range(40):
            clock.now_s += rng.random() * 40
            store.append(f"{rng.randrange(6)}", [make_trace(f"{step}-{i}", 1) for i in range(2)])
            read += [row.key for row in drain(store, cursor, 99)]
            there = {row.key.writer for row in drain(store, {}, 99)}
            assert known_writers(store) - {GONE} == there
    assert len(read) == len(set(read)) == 2 * 40


def test_a_request_choice_is_stored_once(place: Place) -> None:
    with make_store(place) as store:
        result = store.append("a", [make_trace("r"), make_trace("r"), make_trace("r", 4, 1)])
        assert (result.written, result.duplicates) == (2, 1)
        result = store.append("b", [make_trace("r"), make_trace("s")])
        assert (result.written, result.duplicates) == (1, 1)
        assert store.stats().rows == 3


def test_a_seq_is_not_reused_after_the_newest_rows_left(place: Place) -> None:
    clock = Clock()
    config = small_config(max_age_days=1)
    with make_store(place, config, clock) as store:
        store.append("a", [make_trace("1"), make_trace("2")])
        cursor = advance({}, store.read({}, 9))
        clock.now_s += 2 * 86_400
        assert store.evict() == 2
        assert store.stats().rows == 0
    with make_store(place, config, clock) as store:
        store.append("a", [make_trace("3")])
        assert [row.key.seq for row in store.read(cursor, 9)] == [3]


def test_load_gives_rows_in_the_order_of_keys_and_omits_missing_ones(place: Place) -> None:
    with make_store(place) as store:
        store.append("a", [make_trace(f"{i}") for i in range(300)])
        seqs = random.Random(0).sample(range(1, 301), 290)
        keys = [RowKey("a", seq) for seq in [*seqs, 999]] + [RowKey("nobody", 1)]
        assert [row.key.seq for row in store.load(keys)] == seqs


def test_live_bytes_stay_within_the_bound_and_the_oldest_leave_first(place: Place) -> None:
    config = small_config(max_bytes=1 << 20)
    with make_store(place, config) as store:
        for i in range(80):
            store.append("a", [make_trace(f"{i}", 40)])
            assert store.stats().bytes <= config.max_bytes
        seqs = [row.key.seq for row in drain(store, {})]
    # A trace of 40 tokens costs 40 * 536 bytes, its header and the row overhead, under 23 KB.
    assert len(seqs) >= config.max_bytes // 23_000 - 1
    assert seqs == list(range(81 - len(seqs), 81))


def test_kept_rows_leave_last_and_take_a_quarter_at_most(place: Place) -> None:
    config = small_config(max_bytes=1 << 20)
    with make_store(place, config) as store:
        store.append("a", [make_trace(f"{i}", 40) for i in range(20)])
        wanted = [RowKey("a", seq) for seq in (3, 1, 2)]
        assert store.set_kept(wanted) == 3
        store.append("a", [make_trace(f"x{i}", 40) for i in range(40)])
        assert store.stats().bytes <= config.max_bytes
        assert [row.key for row in store.load(wanted)] == wanted
        assert store.load([RowKey("a", 4)]) == []
        everything = [RowKey("a", seq) for seq in range(60, 0, -1)]
        row_bytes = store.stats().bytes / store.stats().rows
        num_kept = store.set_kept(everything)
        assert num_kept == pytest.approx(KEPT_SHARE * config.max_bytes / row_bytes, abs=1)
        assert store.stats().kept_rows == num_kept
        assert store.set_kept([]) == 0
        assert store.stats().kept_rows == 0


def test_the_age_bound_takes_kept_rows_too(place: Place) -> None:
    clock = Clock()
    with make_store(place, small_config(max_age_days=1), clock) as store:
        store.append("a", [make_trace("old"), make_trace("kept")])
        store.set_kept([RowKey("a", 2)])
        clock.now_s += 86_400 / 2
        store.append("a", [make_trace("young")])
        clock.now_s += 86_400 / 2 + 1
        store.append("b", [make_trace("new")])  # eviction rides on an append
        assert ids(drain(store, {})) == ["young", "new"]
        assert store.stats().kept_rows == 0


def test_rows_dated_ahead_are_looked_for_when_the_clock_went_back_and_else_once_a_minute(
    place: Place,
) -> None:
    clock = Clock()
    looks: list[float] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE traces SET stored_s"):
            looks.append(clock.now_s)

    with make_store(place, now_s=clock) as store:
        event.listen(store._database.engine, "before_cursor_execute", note)
        start_s = clock.now_s
        for step in range(13):
            clock.now_s = start_s + 10 * step
            store.append("w", [make_trace(f"{step}", 1)])
        assert looks == [start_s, start_s + 60, start_s + 120]
        clock.now_s -= 86_400
        store.append("w", [make_trace("back", 1)])
        assert looks[3:] == [clock.now_s]
        assert store.stats().newest_s == clock.now_s  # of all rows


def test_a_row_that_another_machine_dated_ahead_is_mended_within_a_minute_of_traffic(
    place: Place,
) -> None:
    clock, wrong = Clock(), Clock()
    wrong.now_s += 86_400
    with make_store(place, now_s=clock) as store, make_store(place, now_s=wrong) as other:
        store.append("right", [make_trace("first", 1)])
        other.append("wrong", [make_trace("ahead", 1)])
        for step in range(7):
            clock.now_s += 10
            store.append("right", [make_trace(f"{step}", 1)])
        assert store.stats().newest_s == clock.now_s


def test_totals_equal_a_recount_after_any_sequence(place: Place) -> None:
    rng = random.Random(1)
    clock = Clock()
    with make_store(place, small_config(max_bytes=1 << 19, max_age_days=0.01), clock) as store:
        for step in range(80):
            clock.now_s += rng.random() * 60
            names = [f"{rng.randrange(60)}" for _ in range(rng.randrange(4))]
            store.append(rng.choice("ab"), [make_trace(n, rng.randrange(1, 40)) for n in names])
            if step % 5 == 4:
                store.set_kept([row.key for row in store.read({}, rng.randrange(1, 20))])
        stats = store.stats()
        with store._database.reading() as connection:
            rows, total = connection.execute(
                select(func.count(), func.sum(traces.c.num_bytes))
            ).one()
            kept, kept_bytes = connection.execute(
                select(func.count(), func.sum(traces.c.num_bytes)).where(traces.c.kept == 1)
            ).one()
            noted = connection.execute(select(totals.c.kept_bytes)).scalar_one()
    assert rows > 0
    assert kept > 0
    assert (stats.rows, stats.bytes, stats.kept_rows) == (rows, total, kept)
    assert noted == kept_bytes


def test_a_failed_append_leaves_nothing(place: Place) -> None:
    good, bad = make_trace("good"), make_trace("bad", 4)
    object.__setattr__(bad, "logsumexp", np.zeros(3, np.float32))
    with make_store(place) as store:
        with pytest.raises(ValueError, match="4 tokens"):
            store.append("a", [good, bad])
        assert store.stats().rows == 0
        store.append("a", [good])
        assert store.read({}, 9)[0].key.seq == 1


def test_stats_of_an_empty_store(place: Place) -> None:
    with make_store(place) as store:
        stats = store.stats()
    assert (stats.rows, stats.bytes, stats.kept_rows) == (0, 0, 0)
    assert stats.oldest_s is None
    assert stats.newest_s is None
