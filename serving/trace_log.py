"""Where finished traces go: the store's writer thread, or nowhere while the store cannot be opened.

Owns the opening of the store and the counts of what became of each trace. A store that fails, at
start or later, never reaches a user: traces are dropped and counted, opening is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dvi.config import ReplayConfig
from dvi.config.secrets import mask
from dvi.replay import ReplayStore, ReplayStoreError, TraceWriter, WriterCounts, open_store
from dvi.types import Trace
from serving.background import BackgroundThread

logger = logging.getLogger(__name__)

READ_ROWS = 32  # traces read at a time: some 1 MB
LOOK_INTERVAL_S = 1.0  # how old the sizes in /metrics may be, and how soon opening is tried again


@dataclass(frozen=True, slots=True)
class TraceLogView:
    """Counts and sizes for a scrape."""

    written: int
    dropped: Mapping[str, int]
    rows: int
    bytes: int
    purges: int  # that erased something; whoever remembers answers forgets when it grows


class TraceLog(BackgroundThread):
    """One store for one server. ``offer`` from the decode thread, ``view`` from any thread."""

    def __init__(self, url: str, config: ReplayConfig, *, keep_content: bool) -> None:
        super().__init__("trace-log")
        self._url = url
        self._config = config
        self._keep_content = keep_content
        self._store: ReplayStore | None = None
        self._writer: TraceWriter | None = None
        self._unopened_drops = 0  # written by the decode thread only
        self._rows = 0
        self._bytes = 0
        self._purges = 0
        self._is_reachable = True

    def _begin(self) -> None:
        if self._keep_content:
            self._look()
            super()._begin()

    def _end(self) -> None:
        """Write what waits, then close the store."""
        super()._end()
        if self._writer is not None:
            self._writer.close()
        if self._store is not None:
            self._store.close()

    def offer(self, trace: Trace) -> None:
        """Take one finished trace; never waits, never raises."""
        writer = self._writer
        if writer is None:
            self._unopened_drops += 1
        else:
            writer.offer(trace)

    def view(self) -> TraceLogView:
        """Counts now and the sizes of the last look; never touches the store."""
        counts = WriterCounts() if self._writer is None else self._writer.counts()
        dropped = dict(counts.dropped)
        dropped["store_error"] = dropped.get("store_error", 0) + self._unopened_drops
        return TraceLogView(counts.written, dropped, self._rows, self._bytes, self._purges)

    def newest(self, max_tokens: int) -> list[Trace]:
        """The traces stored last, oldest of them first, until their answers fill ``max_tokens``.

        Reads the store, so not on the decode thread. What cannot be read is left out.
        """
        found: list[Trace] = []
        num_tokens = 0
        try:
            keys = [] if self._store is None else self._store.newest(max_tokens)
            while keys and num_tokens < max_tokens and self._store is not None:
                page, keys = keys[:READ_ROWS], keys[READ_ROWS:]
                for row in self._store.load(page):
                    num_tokens += len(row.trace.output_ids)
                    found.append(row.trace)
        except (ReplayStoreError, OSError) as error:
            logger.warning("replay store: %s", mask(str(error)))
        return found[::-1]

    def _run(self) -> None:
        while not self._stop.wait(LOOK_INTERVAL_S):
            self._look()

    def _look(self) -> None:
        """Open the store if it is not, and read its size. May block."""
        try:
            if self._store is None:
                self._open()
            assert self._store is not None
            stats = self._store.stats()
        except (ReplayStoreError, OSError) as error:
            if self._is_reachable:
                logger.warning("replay store: %s", mask(str(error)))
            self._is_reachable = False
            return
        self._is_reachable = True
        self._rows, self._bytes, self._purges = stats.rows, stats.bytes, stats.purges

    def _open(self) -> None:
        store = open_store(self._url, self._config)
        writer = TraceWriter(store, self._config)
        writer.start()
        self._store, self._writer = store, writer
