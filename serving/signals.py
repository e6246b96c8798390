"""SIGTERM and Ctrl-C: the first asks for a drain, the second stops at once.

Owns the two handlers while it is entered; knows nothing of what is drained.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

HANDLED = (signal.SIGTERM, signal.SIGINT)


class StopRequested(BaseException):
    """Raised in the main thread by a signal while the server is still starting."""


class StopSignals:
    """Main thread only."""

    def __init__(self, stop_at_once: Callable[[], None]) -> None:
        self.drain = threading.Event()
        self._stop_at_once = stop_at_once  # called in the handler, whatever the main thread does
        self._is_starting = True
        self._before: dict[int, object] = {}

    def started(self) -> None:
        """From now on a first signal sets ``drain`` and interrupts nothing."""
        self._is_starting = False

    def __enter__(self) -> Self:
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

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.drain.is_set():
            self._stop_at_once()
        self.drain.set()
        if self._is_starting:
            raise StopRequested
