"""What a loop may do with a tracker, and what a row is.

Owns the contract; knows no sink. Only loops call a tracker: components hand out ``gauges()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeAlias

Value: TypeAlias = float | int | str


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Numbers of one moment; ``values`` have full names such as ``serve/tokens``."""

    time_s: float  # Unix time
    family: str  # serve, train, adapter, drift, bench
    values: Mapping[str, Value]


LIVE = ("live",)  # a version that went into service


@dataclass(frozen=True, slots=True)
class KeptAdapter:
    """A version with its files, and what it is called besides its number."""

    version: int
    folder: Path
    aliases: tuple[str, ...] = LIVE


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that a person should hear of; numbers and fixed words, never content."""

    title: str  # under 64 characters; W&B sends one title at most once in ALERT_WAIT_S
    text: str


class Tracker(Protocol):
    """Takes numbers from any thread. No method but ``close`` waits, and none raises."""

    def log(self, family: str, row: Mapping[str, Value]) -> None:
        """Take one row; names without a slash get ``family/`` in front. Drops are counted."""
        ...

    def artifact(self, version: int, folder: Path, aliases: tuple[str, ...] = LIVE) -> None:
        """Take an adapter, promoted unless ``aliases`` say otherwise; a sink may keep its files."""
        ...

    def alert(self, title: str, text: str) -> None:
        """Tell a person, where a sink can; the row of the same event goes through ``log``."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """``tracking_rows_dropped``: rows that reached no disk and no server so far."""
        ...

    def close(self) -> None:
        """Write out what waits, within a bounded time; the tracker is done."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_error: object) -> None: ...


def make_row(family: str, row: Mapping[str, Value], time_s: float) -> MetricRow:
    """The row with full names; the values are copied, so the caller may reuse its mapping."""
    names = {name: name if "/" in name else f"{family}/{name}" for name in row}
    return MetricRow(time_s, family, {names[name]: value for name, value in row.items()})
