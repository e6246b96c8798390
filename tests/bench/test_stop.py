"""A bench that is told to end, and one that is told to measure less."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dvi.bench.bench import Bench
from dvi.bench.cells import CELLS, CellResult, cells_section, chosen_cells
from dvi.bench.check import Identity
from dvi.bench.figures import figures
from dvi.bench.prompts import Item
from dvi.bench.race import How, race, single_units
from dvi.bench.stop import Stop
from dvi.config import DviConfig
from tests.bench.fakes import FakeClock, FakeRunner


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_the_end_and_a_later_one_ends(number: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    clock = FakeClock()
    stop = Stop(clock)
    with stop.on_signals():
        assert not stop.is_asked()
        os.kill(os.getpid(), number)
        assert stop.is_asked()
        os.kill(os.getpid(), number)  # the same one, as `timeout` sends it
        clock.now_s = 2.0
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))


def test_one_cell_is_chosen_by_name_and_none_after_the_end_was_asked_for(
    config: DviConfig, tmp_path: Path
) -> None:
    bench = Bench(config, tmp_path)
    assert list(chosen_cells(bench, CELLS)) == list(CELLS)
    for cell in CELLS:
        config.bench.cell = cell.key
        assert list(chosen_cells(bench, CELLS)) == [cell]
    config.bench.cell = "all"
    with bench.stop.on_signals():
        seen = chosen_cells(bench, CELLS)
        assert next(seen) == CELLS[0]
        os.kill(os.getpid(), signal.SIGTERM)
        assert list(seen) == []


def test_sources_are_compared_unless_left_out(config: DviConfig, tmp_path: Path) -> None:
    bench = Bench(config, tmp_path)
    assert bench.drafts() == ["block", "memory", "auto"]
    config.bench.sources = False
    assert bench.drafts() == ["auto"]
    config.drafter.kind = "none"
    assert bench.drafts() == []


def test_a_report_says_of_how_many_prompts_it_is() -> None:
    clock = FakeClock()
    units = single_units([Item("a", (1, 2)), Item("a", (3,))], 1)
    result = race(
        [FakeRunner("plain", clock, 1.0)], units, How(4, 0.0, 0), clock, is_stopped=lambda: True
    )
    identity = Identity(0, 0, (), 0.0)
    one = CellResult(CELLS[0], 1, 2, figures(result, "plain"), identity)
    section = cells_section("spec", [one])
    assert section.data["cells"][0]["num_prompts"] == 1
    assert "spec, batch 1, greedy: stopped after 1 of 2 prompts" in section.notes
