"""Races: turns, blocks, figures. Times are a fake clock's, so every figure is known."""

from __future__ import annotations

import pytest

from dvi.bench.figures import figures, group_bars, group_grid, way_grid
from dvi.bench.prompts import Item
from dvi.bench.race import How, batch_units, race, single_units
from dvi.decoding.stats import Phase
from tests.bench.fakes import FakeClock, FakeRunner

HOW = How(max_tokens=8, temperature=0.0, first_seed=0)
ITEMS = [Item("a", (1, 2)), Item("a", (1, 2, 3, 4)), Item("b", (5, 6))]


def test_every_prompt_is_in_one_unit_and_each_group_in_every_block() -> None:
    items = [Item(group, (i,)) for group in "ab" for i in range(6)]
    units = single_units(items, 3)
    assert [unit.items[0].ids[0] for unit in units if unit.group == "a"] == list(range(6))
    assert [unit.items[0].ids[0] for unit in units if unit.group == "b"] == list(range(6))
    assert [(unit.block, unit.group) for unit in units] == [
        (block, group) for block in range(3) for group in "ab" for _ in range(2)
    ]
    assert [unit.first_seed for unit in units] == list(range(12))


def test_a_group_of_fewer_prompts_than_blocks_has_as_many_blocks_as_prompts() -> None:
    units = single_units(ITEMS, 3)
    assert [(unit.group, unit.block) for unit in units] == [("a", 0), ("b", 0), ("a", 1)]


@pytest.mark.parametrize(
    ("num_items", "sizes"), [(16, [8, 8]), (12, [12]), (3, [3]), (40, [13, 13, 14])]
)
def test_batches_are_full_where_there_are_enough_prompts(num_items: int, sizes: list[int]) -> None:
    items = [Item("ab"[i % 2], (i,)) for i in range(num_items)]
    units = batch_units(items, 8, 3)
    assert [len(unit.items) for unit in units] == sizes
    assert sorted(item.ids for unit in units for item in unit.items) == [
        (i,) for i in range(num_items)
    ]


def test_runners_take_turns_in_beginning() -> None:
    clock, log = FakeClock(), list[str]()
    runners = [FakeRunner(name, clock, 1.0, log) for name in ("x", "y")]
    race(runners, single_units(ITEMS, 1), HOW, clock)
    assert log == ["x", "y", "y", "x", "x", "y"]


def test_a_race_that_is_stopped_keeps_whole_units_of_all_runners() -> None:
    clock = FakeClock()
    runners = [FakeRunner("plain", clock, 1.0), FakeRunner("fast", clock, 0.5)]
    units = single_units(ITEMS, 3)
    result = race(runners, units, HOW, clock, is_stopped=lambda: clock.now_s > 5)
    # Two tokens each: 3 s for the first unit, 6 s after the second.
    assert list(result.units) == units[:2]
    assert {name: len(turns) for name, turns in result.turns.items()} == {"plain": 2, "fast": 2}
    assert [one.over_base["b"].median for one in figures(result, "plain")] == [1.0, 2.0]
    first = race(runners, units, HOW, clock, is_stopped=lambda: True)
    assert list(first.units) == units[:1]  # what was begun has a figure


def test_figures_are_those_of_the_clock() -> None:
    clock = FakeClock()
    slow, fast = FakeRunner("plain", clock, 0.5, rounds=2), FakeRunner("fast", clock, 0.125)
    result = race([slow, fast], single_units(ITEMS, 2), HOW, clock)
    plain, other = figures(result, "plain")
    assert plain.tokens_per_s.median == 2.0
    assert plain.mean_ratio == plain.worst_ratio == 1.0
    assert other.tokens_per_s.low == other.tokens_per_s.high == 8.0
    assert {group: one.median for group, one in other.over_base.items()} == {"a": 4.0, "b": 4.0}
    assert other.over_base["a"].repeats == 2
    assert other.first_token_ms == 125.0
    assert other.shares[Phase.VERIFY] == 0.75
    assert other.shares[Phase.LOG] == 0.25
    # 8 tokens in 3 rounds at an eighth of a second each.
    assert other.round_ms == pytest.approx(1e3 * 8 / 8 / 3)
    assert plain.counts is not None
    assert plain.counts.rounds == 6
    assert plain.counts.mean_accepted_length() == 8 / 6


def test_a_group_counts_once_in_the_mean_ratio_however_long_it_is() -> None:
    clock = FakeClock()
    slow, fast = FakeRunner("plain", clock, 1.0), FakeRunner("fast", clock, 1.0)
    items = [Item("long", tuple(range(100))), Item("short", (1,))]
    result = race([slow, fast], single_units(items, 1), HOW, clock)
    turns = dict(result.turns)
    halved = turns["fast"][1].__class__(0.5, turns["fast"][1].answers, turns["fast"][1].phase_s)
    turns["fast"] = [turns["fast"][0], halved]
    found = figures(result.__class__(result.units, turns), "plain")[1]
    assert found.mean_ratio == 1.5  # of 1 and 2
    assert found.worst_ratio == 1.0


def test_tables_and_panels_show_every_runner_and_group() -> None:
    clock = FakeClock()
    runners = [FakeRunner("plain", clock, 1.0), FakeRunner("fast", clock, 0.5)]
    found = figures(race(runners, single_units(ITEMS, 1), HOW, clock), "plain")
    assert [row[:4] for row in way_grid("", found).rows] == [
        ("plain", "1.0 (1.0-1.0)", "1.00x", "1.00x"),
        ("fast", "2.0 (2.0-2.0)", "2.00x", "2.00x"),
    ]
    assert [row[0] for row in group_grid("", found).rows] == ["a", "b"]
    assert group_bars("", found).series == {"fast": [2.0, 2.0]}
