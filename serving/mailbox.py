"""The way of deltas from the decode thread to the event loop, with one wake-up for many.

Owns what waits to cross; knows no request. Waking the loop costs a system call and a fight for the
interpreter: a step of many rows delivers to all of them before the loop has run once.
"""

from __future__ import annotations

import asyncio
from collections import deque

from dvi.types import Delta

DeltaQueue = asyncio.Queue[Delta]


class Mailbox:
    """Hands deltas to queues of one event loop, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[tuple[DeltaQueue, Delta]] = deque()
        self._is_woken = False

    def post(self, queue: DeltaQueue, delta: Delta) -> None:
        """Any thread: put ``delta`` into ``queue`` on the loop, soon. Dropped once it is closed."""
        self._waiting.append((queue, delta))
        if self._is_woken or self.loop.is_closed():
            return
        self._is_woken = True
        self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        # Before looking: whoever posts from here on wakes the loop again.
        self._is_woken = False
        while self._waiting:
            queue, delta = self._waiting.popleft()
            queue.put_nowait(delta)
