"""What goes through a tracker: rows of numbers, adapters, alerts.

Owns the values; knows no sink.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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


def make_row(family: str, row: Mapping[str, Value], time_s: float) -> MetricRow:
    """The row with full names; the values are copied, so the caller may reuse its mapping."""
    names = {name: name if "/" in name else f"{family}/{name}" for name in row}
    return MetricRow(time_s, family, {names[name]: value for name, value in row.items()})
