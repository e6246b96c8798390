"""A wall clock for bounds on age: one that a wrong date does not move at once.

Owns the doubt; does not know what is old. Rows are erased by age, so a clock that is set ahead by
mistake must not erase a month of them before somebody has put it right. One that is set back is
doubted too, also at a start (a machine without a battery begins in the past): what is stored says
when it has been at least.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FOLLOWED_S = 60.0  # steps of time synchronisation are far below
BELIEVED_AFTER_S = 3600.0  # a clock that was wrong at boot is put right once, and stays so


def boot_s() -> float:
    """Seconds of a clock that nobody sets; on Linux it runs on while the machine sleeps."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class SteadyClock:
    """Unix time now. A jump shows only after it has lasted BELIEVED_AFTER_S. Any thread."""

    def __init__(
        self,
        newest_s: float = 0.0,  # Unix time of something that has happened already
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = boot_s,
    ) -> None:
        self._wall = wall
        self._boot = boot
        self._lock = threading.Lock()
        self._offset_s = max(wall(), newest_s) - boot()
        self._doubted_s: float | None = None  # boot time at which the clock was seen elsewhere

    def __call__(self) -> float:
        """Seconds since 1970."""
        with self._lock:
            now_s = self._boot()
            offset_s = self._wall() - now_s
            if abs(offset_s - self._offset_s) > FOLLOWED_S:
                self._doubted_s = now_s if self._doubted_s is None else self._doubted_s
                if now_s - self._doubted_s < BELIEVED_AFTER_S:
                    return now_s + self._offset_s
            self._doubted_s = None
            self._offset_s = offset_s
            return now_s + offset_s
