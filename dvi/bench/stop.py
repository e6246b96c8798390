"""Ending a bench early with a report of what was measured.

Owns the signals; does not know what is measured.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

log = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Asked for by the first Ctrl-C or SIGTERM; looked at between prompts, cells and parts."""

    def __init__(self) -> None:
        self._is_asked = False

    def is_asked(self) -> bool:
        """Whether no further prompt is to be measured."""
        return self._is_asked

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Inside, the first signal asks for the end; the next one is KeyboardInterrupt.

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
        self._is_asked = True
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler)
        log.warning("ending: what was measured will be reported; once more ends at once")
