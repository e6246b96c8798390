"""Whether a child process still works: it tells something now and then, or it waits for a core.

Owns the decision; neither kills nor starts. A trainer runs only where nobody else wants the CPU, so
silence alone is no fault: on a full machine it may be runnable and not run for an hour. Before its
first word it may wait for another trainer to end, or for the store: that is no fault either.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

MAX_SILENCE_S = 300.0  # a step or a gate takes seconds, the start of a large model a minute
LOOKS = 25  # in a row that find it waiting for something other than a core: five seconds


def process_state(pid: int) -> str:
    """Linux's letter for what the process's first thread does; empty where it cannot be told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except (OSError, IndexError):
        return ""


class SignsOfLife:
    """Looks at one child after another. One thread."""

    def __init__(
        self,
        last_sign: Callable[[], object],
        max_silence_s: float = MAX_SILENCE_S,
        state: Callable[[int], str] = process_state,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``last_sign``: anything that changes whenever the child says something."""
        self._last_sign = last_sign
        self._max_silence_s = max_silence_s
        self._state = state
        self._clock = clock
        self.start(0)

    def start(self, pid: int) -> None:
        """A new child: its silence begins with its first word."""
        self._pid = pid
        self._said = self._last_sign()
        self._said_s = math.inf
        self._num_idle = 0

    def are_missing(self) -> bool:
        """Whether it has been silent for too long and was not waiting for a core either."""
        said = self._last_sign()
        if said != self._said:
            self._said, self._said_s = said, self._clock()
        self._num_idle = 0 if self._state(self._pid) == "R" else self._num_idle + 1
        return self._num_idle >= LOOKS and self._clock() - self._said_s > self._max_silence_s
