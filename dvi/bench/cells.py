"""A race at one batch size and temperature, checked before any ratio of it is shown.

Owns the order race, check, figures; does not know where prompts come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dvi.bench.bench import Bench
from dvi.bench.check import Identity, compare
from dvi.bench.figures import Figures, figures, group_bars, group_grid, way_grid
from dvi.bench.part import Json, Section
from dvi.bench.prompts import Item
from dvi.bench.race import How, Runner, batch_units, race, single_units

FIRST_SEED = 1_000


@dataclass(frozen=True, slots=True)
class Cell:
    """How a race's prompts are decoded."""

    batch_size: int
    temperature: float

    @property
    def key(self) -> str:
        """As in bench.cell."""
        return f"{'greedy' if self.temperature == 0 else 'sampled'}-{self.batch_size}"

    @property
    def name(self) -> str:
        """For titles."""
        kind = "greedy" if self.temperature == 0 else f"temperature {self.temperature:g}"
        return f"batch {self.batch_size}, {kind}"


CELLS = (Cell(1, 0.0), Cell(8, 0.0), Cell(1, 0.8), Cell(8, 0.8))


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a race showed."""

    cell: Cell
    num_prompts: int  # that were raced
    num_asked: int
    found: list[Figures]  # the base first
    identity: Identity


def chosen_cells(bench: Bench, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Those of ``cells`` that bench.cell names, until the bench is stopped."""
    for cell in cells:
        if bench.config.bench.cell in ("all", cell.key) and not bench.stop.is_asked():
            yield cell


def run_cell(
    bench: Bench,
    runners: Sequence[Runner],
    items: Sequence[Item],
    cell: Cell,
    *,
    checked: Sequence[str],
    bound: float,
) -> CellResult:
    """Race the runners; the first one is the base, and the answers of ``checked`` must be its.

    ``bound``: largest margin in logits at which two answers may part.
    """
    repeats = bench.config.bench.repeats
    how = How(bench.config.bench.max_tokens, cell.temperature, FIRST_SEED)
    if cell.batch_size == 1:
        units = single_units(items, repeats)
    else:
        units = batch_units(items, cell.batch_size, repeats)
    result = race(runners, units, how, is_stopped=bench.stop.is_asked)
    identity = compare(result, how, bench.loaded().target, checked, bound)
    num_raced = sum(len(unit.items) for unit in result.units)
    return CellResult(cell, num_raced, len(items), figures(result, runners[0].name), identity)


def cells_section(title: str, results: Sequence[CellResult]) -> Section:
    """Tables, panels and JSON of a part's races; no figure of one whose answers differ."""
    grids, panels, notes = [], [], []
    rows: list[Json] = []
    failures = [one.identity.failure for one in results if one.identity.failure]
    for one in results:
        name = f"{title}, {one.cell.name}"
        row: Json = {
            "batch_size": one.cell.batch_size,
            "temperature": one.cell.temperature,
            "num_prompts": one.num_prompts,
            "identity": one.identity.as_json(),
        }
        rows.append(row)
        notes.append(f"{name}: {one.identity.failure or one.identity.line}")
        if one.num_prompts < one.num_asked:
            notes.append(f"{name}: stopped after {one.num_prompts} of {one.num_asked} prompts")
        if one.identity.failure:
            continue
        row["ways"] = [figure.as_json() for figure in one.found]
        grids.append(way_grid(name, one.found))
        if len(one.found) > 1:
            panels.append(group_bars(name, one.found))
        if len(one.found) > 1 and len(one.found[0].over_base) > 1:
            grids.append(group_grid(f"{name}: tokens/s over {one.found[0].name}", one.found))
    return Section({"cells": rows}, grids, panels, notes, failures[0] if failures else None)
