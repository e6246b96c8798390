"""What a user asked a command to do, and what came of it.

Owns three value types and the quoting of values; imports no Hydra, so that the command line can
build requests at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dvi.config import DviConfig


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One launch. ``show_config`` and ``show_info`` are Hydra's ``--cfg`` and ``--info``."""

    command: str
    overrides: tuple[str, ...] = ()
    config_dir: str | None = None
    config_name: str = "config"
    show_config: str | None = None  # job, hydra or all
    package: str | None = None
    resolve: bool = False
    show_info: str | None = None
    multirun: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task returns: the exit status, and a number for Hydra's sweepers if it has one."""

    status: int = 0
    value: float | None = None


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job of a sweep."""

    overrides: tuple[str, ...]
    status: int  # 1 where it raised
    value: float | None
    folder: Path


Task = Callable[[DviConfig, Path], Outcome]  # config and run folder
TellSweep = Callable[[Sequence[JobResult]], None]


def quoted(text: str) -> str:
    """The text as a value of an override, whatever is in it.

    In Hydra's grammar a backslash escapes only before the closing quote or another quote.
    """
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"'{escaped}'"
