"""How long the phases of a run took, one after the other.

Owns the clock of a run; does not know what a phase does.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Laps:
    """Seconds by phase, in order; ``lap`` ends the phase that runs. One thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """The time since the last lap was this phase's; a phase may come several times."""
        now_s = self._clock()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now_s - self._since_s
        self._since_s = now_s

    @property
    def total(self) -> float:
        """Seconds of all phases."""
        return sum(self.seconds.values())
