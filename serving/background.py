"""A thread that works beside decoding from ``__enter__`` to ``__exit__``.

Owns starting, asking to stop and waiting a bounded time; does not know the work.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

JOIN_TIMEOUT_S = 5.0


class BackgroundThread(ABC):
    """A daemon thread around ``_run``, which ends soon after ``_stop`` is set.

    A subclass that opens or closes something with the thread extends ``_begin`` or ``_end``.
    """

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._begin()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()

    def _begin(self) -> None:
        self._thread.start()

    def _end(self) -> None:
        """A thread that was never started, or does not end in time, is left."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    @abstractmethod
    def _run(self) -> None:
        """The thread's work."""
