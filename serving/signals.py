"""SIGTERM and Ctrl-C: the first asks for a drain, the second stops at once.

Owns the two handlers while it is entered; knows nothing of what is drained. A Python handler runs
when the main thread comes to it, which may be never: a signal that comes between the interpreter's
look and a blocking call does not interrupt that call. So signals are counted by a pipe that the
interpreter writes to at once, whatever its threads do.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Self

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):
    """Raised in the main thread by a signal while the server is still starting."""


class StopSignals:
    """Main thread only."""

    def __init__(self, stop_at_once: Callable[[], None]) -> None:
        self._stop_at_once = stop_at_once  # called in a thread, whatever the main thread does
        self._is_starting = True
        self._before: dict[int, object] = {}
        self._reader, self._writer, self._woken_before = -1, -1, -1
        self._second = threading.Thread(target=self._await_second, name="second-signal")

    def wait(self) -> None:
        """Return at the first signal, also at one that came before; from then on a second acts."""
        self._next_signal()
        self._second.start()

    def started(self) -> None:
        """From now on a first signal ends ``wait`` and interrupts nothing."""
        self._is_starting = False

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._woken_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in HANDLED:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            if callable(handler) or isinstance(handler, signal.Handlers):
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        os.close(self._writer)
        if self._second.ident is not None:
            self._second.join()
        os.close(self._reader)

    def _next_signal(self) -> bool:
        """Wait for one of HANDLED; False once the pipe is closed. Other signals wake it too."""
        while number := os.read(self._reader, 1):
            if number[0] in HANDLED:
                return True
        return False

    def _await_second(self) -> None:
        if self._next_signal():
            self._stop_at_once()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_starting:
            raise StopRequested
