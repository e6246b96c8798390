"""The thread between loops and one sink: a bounded queue, counts, a bounded end.

Owns waiting rows and drop counts; does not know where a sink puts a row. Each sink has a thread
of its own, so a server that never answers does not keep rows from the local file.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

from dvi.tracking.base import Alert, KeptAdapter, MetricRow

QUEUE_ROWS = 1024  # over an hour of the server's rows

_log = logging.getLogger("dvi.tracking")


class Sink(Protocol):
    """Where rows go. Called from one thread; ``errors`` is what its methods may raise."""

    name: str
    errors: tuple[type[Exception], ...]

    def open(self) -> None:
        """Connect; may take long."""
        ...

    def write(self, row: MetricRow) -> None:
        """Put one row away."""
        ...

    def keep(self, adapter: KeptAdapter) -> None:
        """Put the files of a promoted adapter away, if this sink keeps files."""
        ...

    def alert(self, alert: Alert) -> None:
        """Tell a person, if this sink can."""
        ...

    def close(self) -> None:
        """Finish; may take long."""
        ...


class SinkThread:
    """Feeds one sink. ``offer`` from any thread; ``start`` and ``close`` once, by the owner."""

    def __init__(self, sink: Sink, queue_rows: int = QUEUE_ROWS) -> None:
        self._sink = sink
        self._queue_rows = queue_rows
        self._queue: queue.SimpleQueue[MetricRow | KeptAdapter | Alert | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # the count only
        self._dropped = 0
        self._warned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"track-{sink.name}", daemon=True)

    def start(self) -> None:
        """Start the thread; it opens the sink."""
        self._thread.start()

    def offer(self, item: MetricRow | KeptAdapter | Alert) -> None:
        """Take ``item``, or drop and count it when the queue is full or the sink has ended."""
        if self._ended.is_set() or self._queue.qsize() >= self._queue_rows:
            self._count_dropped(1)
        else:
            self._queue.put(item)

    def dropped(self) -> int:
        """Rows, adapters and alerts that did not get through so far."""
        with self._lock:
            return self._dropped

    def close(self, timeout_s: float) -> None:
        """Let the sink finish within ``timeout_s``; a sink that hangs is left to the exit."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if not self._ended.is_set():
            self._ended.set()
            self._count_left()

    def _run(self) -> None:
        try:
            self._sink.open()
            while (item := self._queue.get()) is not None:
                self._pass_on(item)
            self._sink.close()
        except self._sink.errors as error:
            self._warn(error)
        finally:
            self._ended.set()
            self._count_left()

    def _pass_on(self, item: MetricRow | KeptAdapter | Alert) -> None:
        try:
            if isinstance(item, MetricRow):
                self._sink.write(item)
            elif isinstance(item, KeptAdapter):
                self._sink.keep(item)
            else:
                self._sink.alert(item)
        except self._sink.errors as error:
            self._count_dropped(1)
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Once: a full disk must not fill the log as well."""
        if not self._warned:
            self._warned = True
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            _log.warning("tracking: %s fails, rows are dropped (%s)", self._sink.name, reason)

    def _count_left(self) -> None:
        while True:
            try:
                left = self._queue.get_nowait()
            except queue.Empty:
                return
            if left is not None:
                self._count_dropped(1)

    def _count_dropped(self, num: int) -> None:
        with self._lock:
            self._dropped += num
