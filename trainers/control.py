"""What the server asks for: control.json, and the share of CPU time that training may take.

Owns both limits; does not know what a turn does. A missing or damaged file asks for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CONTROL_FILE = "control.json"
WINDOW_S = 10.0  # an idle stretch longer than this earns nothing more


@dataclass(frozen=True, slots=True)
class Control:
    """The server's wishes."""

    is_paused: bool = False
    num_drifts: int = 0  # only grows


def read_control(path: Path) -> Control:
    """The newest wishes."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Control()
    if not isinstance(data, dict):
        return Control()
    drifts = data.get("drifts")
    return Control(data.get("paused") is True, drifts if isinstance(drifts, int) else 0)


class CpuBudget:
    """CPU seconds a second, averaged over WINDOW_S at least. One thread."""

    def __init__(
        self, max_rate: float, clock: Callable[[], float], cpu_clock: Callable[[], float]
    ) -> None:
        self._max_rate = max_rate  # cores
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._last_s = clock()
        self._last_cpu_s = cpu_clock()
        self._debt_s = 0.0  # CPU time spent and not yet earned; negative: saved up

    def pause_s(self) -> float:
        """How long to rest now, 0 where nothing is owed."""
        now_s, cpu_s = self._clock(), self._cpu_clock()
        spent_s, earned_s = cpu_s - self._last_cpu_s, (now_s - self._last_s) * self._max_rate
        self._last_s, self._last_cpu_s = now_s, cpu_s
        self._debt_s = max(self._debt_s + spent_s - earned_s, -WINDOW_S * self._max_rate)
        return max(self._debt_s, 0.0) / self._max_rate


@dataclass(frozen=True, slots=True)
class Pace:
    """What may hold the loop back or hurry it."""

    wishes: Callable[[], Control] = Control
    pause_s: Callable[[], float] = float  # 0.0: never rests
