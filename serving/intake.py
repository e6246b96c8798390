"""Where a request's bytes become a plan: beside the event loop, large bodies one at a time.

Owns the threads; does not know what is done with a body. A body of a megabyte takes up to a second
of one core; in a lane of one thread several of them cannot take turns at the interpreter with the
decode thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

HEAVY_BYTES = 64 << 10

Result = TypeVar("Result")


class Intake:
    """Runs the CPU-bound work of requests off the event loop."""

    def __init__(self) -> None:
        self._heavy = ThreadPoolExecutor(1, "heavy-bodies")

    async def run(self, num_bytes: int, work: Callable[[], Result]) -> Result:
        """The result of ``work`` for a body of so many bytes, or its exception."""
        if num_bytes < HEAVY_BYTES:
            return await run_in_threadpool(work)
        return await asyncio.get_running_loop().run_in_executor(self._heavy, work)
