"""The thread between the decode loop and the store: takes traces at once, writes when it can.

Owns the waiting queue and the counts of what became of each trace; knows nothing of SQL. The
decode loop is never made to wait:

    queue full        the new trace is dropped, counted ``queue_full``
    store fails       the batch is tried again with back-off, then dropped, counted ``store_error``
    malformed trace   dropped alone, counted ``store_error``
    seen request id   not written, counted ``duplicate``
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Sequence
from typing import Self

from dvi.config import ReplayConfig
from dvi.replay.rows import AppendResult, ReplayStoreError, WriterCounts
from dvi.replay.store import ReplayStore
from dvi.types import Trace

BATCH_TOKENS = 8192  # about 4 MB a transaction: one commit stays in the tens of milliseconds
BATCH_SHARE = 1 / 32  # of max_bytes, if that is less: a batch must not push the log past its limit
_TOKEN_BYTES = 512  # M = 64
MAX_TRIES = 5  # of one batch; with the back-off about 3 s, as long as another process may lock
_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_UPKEEP_INTERVAL_S = 60.0  # the age bound holds also while no traffic comes


def new_writer_name() -> str:
    """A name no other writer has: seqs of a name belong to one process."""
    return uuid.uuid4().hex[:16]


class TraceWriter:
    """Writes offered traces to one store under one writer name, in one thread.

    ``offer`` may be called from any thread; ``start`` and ``close`` once, by the owner.
    """

    def __init__(self, store: ReplayStore, config: ReplayConfig, writer: str = "") -> None:
        self._writer = writer or new_writer_name()
        self._store = store
        self._store_id = store.store_id  # the name is known there
        self._queue_rows = config.queue_rows
        share_tokens = int(BATCH_SHARE * config.max_bytes) // _TOKEN_BYTES
        self._batch_tokens = min(BATCH_TOKENS, max(share_tokens, 1))
        self._queue: queue.SimpleQueue[Trace | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._lock = threading.Lock()  # counts only; held for an addition
        self._written = 0
        self._dropped = {"queue_full": 0, "store_error": 0, "duplicate": 0}
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, name="trace-writer", daemon=True)

    @property
    def writer(self) -> str:
        """Under which rows are written now."""
        return self._writer

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, trace: Trace) -> None:
        """Take ``trace`` for writing, or drop and count it; never blocks, never raises."""
        if self._closing.is_set() or self._queue.qsize() >= self._queue_rows:
            self._count_dropped("queue_full", 1)
        else:
            self._queue.put(trace)

    def counts(self) -> WriterCounts:
        """A snapshot; everything but ``last_error`` only grows."""
        with self._lock:
            return WriterCounts(self._written, dict(self._dropped), self._last_error)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, for at most ``timeout_s``, then stop; what is left is counted."""
        self._closing.set()
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        while left := self._take_waiting():
            self._count_dropped("store_error", len(left))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            batch = self._next_batch()
            if batch:
                self._write(batch)
            else:
                self._upkeep()
        while batch := self._take_waiting():
            self._write(batch)

    def _next_batch(self) -> list[Trace]:
        """What waits, after waiting for the first one; empty after a minute of silence."""
        try:
            first = self._queue.get(timeout=_UPKEEP_INTERVAL_S)
        except queue.Empty:
            return []
        return self._take_waiting(first)

    def _take_waiting(self, first: Trace | None = None) -> list[Trace]:
        """``first`` and what waits behind it, up to one transaction's worth."""
        batch = [first] if first is not None else []
        num_tokens = sum(len(trace.output_ids) for trace in batch)
        while num_tokens < self._batch_tokens:
            try:
                trace = self._queue.get_nowait()
            except queue.Empty:
                break
            if trace is not None:  # None only wakes the thread
                batch.append(trace)
                num_tokens += len(trace.output_ids)
        return batch

    def _write(self, batch: Sequence[Trace]) -> None:
        """Append with back-off between tries; while closing a batch has one try."""
        pause_s = _FIRST_PAUSE_S
        for _ in range(MAX_TRIES):
            try:
                self._append(batch)
                return
            except ValueError:
                self._write_one_by_one(batch)
                return
            except ReplayStoreError as error:
                self._last_error = str(error)
            if self._closing.wait(pause_s):
                break
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        self._count_dropped("store_error", len(batch))

    def _write_one_by_one(self, batch: Sequence[Trace]) -> None:
        """A malformed trace is among them: it goes alone."""
        for trace in batch:
            try:
                self._append([trace])
            except (ValueError, ReplayStoreError) as error:
                self._last_error = str(error)
                self._count_dropped("store_error", 1)

    def _append(self, batch: Sequence[Trace]) -> None:
        """Under a new name in another store, where seqs begin anew: readers know the old ones."""
        if self._store.store_id != self._store_id:
            self._writer, self._store_id = new_writer_name(), self._store.store_id
        self._count_result(self._store.append(self._writer, batch))

    def _upkeep(self) -> None:
        try:
            self._store.evict()
        except ReplayStoreError as error:
            self._last_error = str(error)

    def _count_result(self, result: AppendResult) -> None:
        with self._lock:
            self._written += result.written
            self._dropped["duplicate"] += result.duplicates
            self._last_error = ""

    def _count_dropped(self, reason: str, num_traces: int) -> None:
        with self._lock:
            self._dropped[reason] += num_traces
