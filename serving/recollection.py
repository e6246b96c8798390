"""What the memory drafter knows of the store: filled from it at start, forgotten with it.

Owns the thread that reads stored answers and notices purges; does not know how a memory finds a
match. Traces name no tenant, so where answers are kept apart by user nothing is restored and the
memory fills as answers end.
"""

from __future__ import annotations

import logging

from dvi.drafting import Drafter
from dvi.drafting.auto import sources_of
from dvi.drafting.memory import MemoryDrafter
from serving.background import BackgroundThread
from serving.trace_log import TraceLog

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0  # how soon a purge by another process is noticed


class Recollection(BackgroundThread):
    """Fills the memory while the server answers already; nobody waits for it.

    After a purge everything is forgotten and read again from what is left: what was purged cannot
    be told apart in the memory, which knows no request and no user.
    """

    def __init__(self, traces: TraceLog, drafter: Drafter, scope: str | None) -> None:
        """``scope`` is that of all stored answers; None: they have none and are not restored."""
        super().__init__("recollection")
        self._traces = traces
        self._memory = sources_of(drafter).memory
        self._scope = scope

    def _begin(self) -> None:
        if self._memory is not None:
            super()._begin()

    def _run(self) -> None:
        assert self._memory is not None
        purges = self._traces.view().purges  # before reading: a purge in between is noticed
        self._fill(self._memory)
        while not self._stop.wait(LOOK_INTERVAL_S):
            now = self._traces.view().purges
            if now != purges:
                purges = now
                self._memory.served.clear()
                logger.info("traces were purged: remembered answers are forgotten")
                self._fill(self._memory)

    def _fill(self, memory: MemoryDrafter) -> None:
        if self._scope is None:
            return
        traces = self._traces.newest(memory.served.max_tokens)
        for trace in traces:
            if self._stop.is_set():
                return
            memory.remember_trace(trace, self._scope)
        if traces:
            logger.info("%d stored answers are remembered", len(traces))
