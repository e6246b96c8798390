"""SIGTERM and Ctrl-C: the first asks for a drain, the second stops at once.

Owns the two handlers while it is entered; knows nothing of what is drained. The handlers take no
lock: one that sets an Event deadlocks when the signal comes while its own thread is inside
``Event.wait``. They write to a pipe instead.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):
    """Raised in the main thread by a signal while the server is still starting."""


class StopSignals:
    """Main thread only."""

    def __init__(self, stop_at_once: Callable[[], None]) -> None:
        self._stop_at_once = stop_at_once  # called in the handler, whatever the main thread does
        self._is_starting = True
        self._is_draining = False
        self._before: dict[int, object] = {}
        self._reader, self._writer = -1, -1

    def wait(self) -> None:
        """Return at the first signal, also at one that came before; afterwards it is drained."""
        os.read(self._reader, 1)

    def started(self) -> None:
        """From now on a first signal ends ``wait`` and interrupts nothing."""
        self._is_starting = False

    def __enter__(self) -> Self:
        self._reader, self._writer = os.pipe()
        for number in HANDLED:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            if callable(handler) or isinstance(handler, signal.Handlers):
                signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_draining:
            self._stop_at_once()
        self._is_draining = True
        os.write(self._writer, b"x")
        if self._is_starting:
            raise StopRequested
