"""Ending a bench early with a report of what was measured.

Owns the signals; does not know what is measured.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME_S = 1.0  # `timeout` sends its signal twice at once: to the command and to its group


class Stop:
    """Asked for by the first Ctrl-C or SIGTERM; looked at between prompts, cells and parts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_s: float | None = None

    def is_asked(self) -> bool:
        """Whether no further prompt is to be measured."""
        return self._asked_s is not None

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Inside, the first signal asks for the end; one more than SAME_S later ends at once.

        Main thread only.
        """
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            signal.signal(number, self._ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked_s is None:
            self._asked_s = self._clock()
            log.warning("ending: what was measured will be reported; once more ends at once")
        elif self._clock() - self._asked_s > SAME_S:
            raise KeyboardInterrupt
