"""What a measurement is to the bench: a part with a name that returns a section of the report.

Owns the shape of a section; does not know what is measured. A new measurement is a file of its own
and one line in dvi/bench/parts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dvi.bench.bench import Bench

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Grid:
    """A table on the screen; cells are what is printed."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Bars:
    """A panel of the picture: one group of bars for each of ``groups``; None leaves a bar out."""

    title: str
    unit: str
    groups: Sequence[str]
    series: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Lines:
    """A panel of the picture: (x, y) points of each line."""

    title: str
    x_label: str
    unit: str
    series: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Section:
    """What one part found."""

    data: Json  # goes to bench.json under the part's name
    grids: Sequence[Grid] = ()
    panels: Sequence[Bars | Lines] = ()
    notes: Sequence[str] = ()  # lines below the tables
    failure: str | None = None  # one line: answers differed, and the bench exits with 1


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement. ``measure`` logs its progress and raises ValueError with one line where the
    config does not allow it."""

    name: str  # as in bench.parts
    meaning: str
    measure: Callable[[Bench], Section]
    by_default: bool = True
