"""Memory and intake: which rows may be drawn, each admitted once."""

from __future__ import annotations

from collections import Counter

from dvi.replay import RowKey
from trainers.intake import Intake
from trainers.memory import Memory


def keys(first: int, last: int, writer: str = "w") -> list[RowKey]:
    return [RowKey(writer, seq) for seq in range(first, last + 1)]


def make_intake(first_rows: int = 2, max_holdout: int = 3) -> Intake:
    return Intake(Memory(4, 3, seed=0), first_rows, max_holdout)


def test_newest_rows_are_kept_in_order_and_older_ones_are_sampled() -> None:
    memory = Memory(newest_rows=4, reservoir_rows=3, seed=0)
    memory.admit(keys(1, 20))
    assert list(memory.newest) == keys(17, 20)
    assert len(memory.reservoir) == 3
    assert set(memory.reservoir) < set(keys(1, 16))
    assert memory.num_spilled == 16


def test_every_spilled_row_stays_in_the_reservoir_with_equal_probability() -> None:
    counts: Counter[int] = Counter()
    for seed in range(3000):
        memory = Memory(newest_rows=1, reservoir_rows=4, seed=seed)
        memory.admit(keys(1, 13))
        counts.update(key.seq for key in memory.reservoir)
    # 12 spilled rows, each kept in 3000 * 4 / 12 = 1000 worlds; standard deviation 26, so 5 sigma.
    assert set(counts) == set(range(1, 13))
    assert all(abs(count - 1000) < 130 for count in counts.values())


def test_draw_takes_its_share_of_newest_rows_and_fills_up_from_the_other_part() -> None:
    memory = Memory(newest_rows=10, reservoir_rows=20, seed=1)
    memory.admit(keys(1, 12))  # two in the reservoir
    drawn = memory.draw(8, 0.75, draw_index=5)
    assert len(set(drawn)) == 8
    assert sum(key in memory.newest for key in drawn) == 6
    assert len(memory.draw(8, 0.25, draw_index=5)) == 8  # wants six old ones, there are two
    assert sorted(memory.draw(99, 0.75, draw_index=0)) == keys(1, 12)
    assert Memory(3, 3, seed=0).draw(8, 0.75, 0) == []


def test_draws_depend_on_seed_and_index_only() -> None:
    first, second = Memory(10, 0, seed=1), Memory(10, 0, seed=1)
    first.admit(keys(1, 10))
    second.admit(keys(1, 10))
    assert first.draw(4, 1.0, 3) == second.draw(4, 1.0, 3)
    assert len({tuple(first.draw(4, 1.0, i)) for i in range(20)}) > 15


def test_a_row_is_admitted_once_whatever_is_read_again() -> None:
    intake = make_intake()
    assert [intake.take(key) for key in keys(1, 6)] == [True] * 6
    assert [intake.take(key) for key in keys(4, 8)] == [False] * 3 + [True] * 2
    assert sorted(intake.keys()) == keys(1, 8)
    assert intake.num_admitted == 8
    assert intake.take(RowKey("other", 1))  # writers count apart


def test_first_rows_go_into_the_memory_and_later_ones_are_held_out_newest_last() -> None:
    intake = make_intake(first_rows=2, max_holdout=3)
    for key in keys(1, 7):
        intake.take(key)
    assert list(intake.holdout) == keys(5, 7)  # 3 and 4 made room
    assert intake.memory.keys() == keys(1, 4)
    intake.release_holdout()
    assert not intake.holdout
    assert list(intake.memory.newest) == keys(4, 7)
    assert sorted(intake.memory.reservoir) == keys(1, 3)


def test_rows_that_left_the_store_leave_memory_and_holdout_and_are_counted() -> None:
    intake = make_intake(first_rows=2, max_holdout=3)
    for key in keys(1, 4):
        intake.take(key)
    intake.forget({RowKey("w", 1), RowKey("w", 4), RowKey("w", 99)})
    assert intake.memory.keys() == [RowKey("w", 2)]
    assert list(intake.holdout) == [RowKey("w", 3)]
    assert intake.num_missing == 2


def test_a_skipped_row_moves_the_cursor_and_is_never_drawn() -> None:
    intake = make_intake()
    intake.skip(RowKey("w", 1))
    assert intake.cursor == {"w": 1}
    assert intake.keys() == []
    assert not intake.take(RowKey("w", 1))


def test_a_restored_intake_goes_on_exactly() -> None:
    one, other = make_intake(), make_intake()
    for key in keys(1, 9):
        one.take(key)
    other.restore(one.snapshot())
    for key in keys(10, 30):
        one.take(key)
        other.take(key)
    assert other.snapshot() == one.snapshot()
