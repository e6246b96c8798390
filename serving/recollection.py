"""At start, the memory drafter learns again what was served before: the newest stored answers.

Owns the thread that reads them; does not know how a memory finds a match. Traces name no tenant, so
where answers are kept apart by user nothing is restored and the memory fills as answers end.
"""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Self

from dvi.drafting import Drafter
from dvi.drafting.auto import sources_of
from serving.trace_log import TraceLog

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 5.0


class Recollection:
    """Fills the memory while the server answers already; nobody waits for it."""

    def __init__(self, traces: TraceLog, drafter: Drafter) -> None:
        self._traces = traces
        self._memory = sources_of(drafter).memory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recollection", daemon=True)

    def __enter__(self) -> Self:
        if self._memory is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        assert self._memory is not None
        traces = self._traces.newest(self._memory.served.max_tokens)
        for trace in traces:
            if self._stop.is_set():
                return
            self._memory.remember(trace.prompt_ids, trace.output_ids, "")
        if traces:
            logger.info("%d stored answers are remembered", len(traces))
