"""What a check found.

Owns the three levels; knows no check.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """A fault stops or harms serving; a warning is something to know."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    name: str
    level: Level
    message: str
    mend: str = ""  # the command that mends it; empty where nothing is to be done


def ok(name: str, message: str) -> Finding:
    """Nothing to do."""
    return Finding(name, Level.OK, message)


def warning(name: str, message: str, mend: str = "") -> Finding:
    """Worth knowing; serving works."""
    return Finding(name, Level.WARNING, message, mend)


def fault(name: str, message: str, mend: str) -> Finding:
    """Has to be mended."""
    return Finding(name, Level.FAULT, message, mend)
