"""Where a request's bytes become a plan: beside the event loop, large bodies one at a time.

Owns the threads; does not know what is done with a body. A body of a megabyte takes up to a second
of one core. In a lane of one thread at low priority several of them cannot take turns at the
interpreter with the decode thread, and what runs without it leaves the cores to decoding.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

HEAVY_BYTES = 64 << 10
# An eighth of a core where decoding takes all of them, which costs steps 7%; at 10 it is a quarter,
# for 40%. Lower would be slower for nobody's gain: who waits for the interpreter waits for whoever
# holds it, whatever its priority.
HEAVY_NICENESS = 15

Result = TypeVar("Result")


class Intake:
    """Runs the CPU-bound work of requests off the event loop."""

    def __init__(self) -> None:
        self._heavy = ThreadPoolExecutor(1, "heavy-bodies", initializer=_lower_priority)

    async def run(self, num_bytes: int, work: Callable[[], Result]) -> Result:
        """The result of ``work`` for a body of so many bytes, or its exception."""
        if num_bytes < HEAVY_BYTES:
            return await run_in_threadpool(work)
        return await asyncio.get_running_loop().run_in_executor(self._heavy, work)


def _lower_priority() -> None:
    """Of the calling thread alone, which is a Linux way; elsewhere nothing happens."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), HEAVY_NICENESS)
