"""The replay store: many writers append traces, readers follow with cursors of their own.

Owns the transactions and the bounds; does not know who trains on the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, func, select, update

from dvi.config import ReplayConfig
from dvi.replay.clock import FOLLOWED_S, SteadyClock, boot_s
from dvi.replay.counters import lock_writer
from dvi.replay.database import Database, open_database
from dvi.replay.encoding import encode
from dvi.replay.eviction import (
    chunks,
    evict_bytes,
    evict_where,
    live_bytes,
    mark_kept,
    redate,
    selected,
    stored_before,
)
from dvi.replay.inserting import NewRow, insert_rows, without_duplicates
from dvi.replay.lease import Lease
from dvi.replay.reading import (
    FetchedRow,
    decoded_in_order,
    fetch,
    keys_behind,
    newest_keys,
    read_stats,
)
from dvi.replay.rows import (
    AppendResult,
    Cursor,
    PurgeResult,
    ReplayStats,
    ReplayStoreError,
    RowKey,
    Selection,
    StoredTrace,
    advance_past,
)
from dvi.replay.schema import purges, traces
from dvi.types import Trace

# Shares of max_bytes. What is in use may exceed the rows' own bytes by the slack of pages; free
# pages stay for the next rows; file and log together never pass the last figure.
USED_SHARE = 1.1
SPARE_SHARE = 0.05
FILE_SHARE = 1.3
_DAY_S = 86_400.0


def default_url(state_dir: Path) -> str:
    """The store of a state folder when ``replay.url`` is null."""
    return f"sqlite:///{state_dir / 'replay.sqlite'}"


class ReplayStore:
    """Bounded rows keyed (writer, seq). Safe for many threads and processes.

    Invariants: within a writer seq ascends in commit order and is never given out twice, so a
    cursor {writer: last seq} cannot skip a late commit; a trace whose append returned survives a
    killed process; after an append the live row bytes are at most ``max_bytes``.
    Every method raises ReplayStoreError when the database cannot do it now, leaving no part done.
    """

    def __init__(
        self, database: Database, config: ReplayConfig, now_s: Callable[[], float]
    ) -> None:
        self._database = database
        self._max_bytes = config.max_bytes
        self._max_age_s = config.max_age_days * _DAY_S
        self._now_s = now_s
        self._redated_s = -math.inf  # when rows of a time to come were last looked for

    @property
    def store_id(self) -> str:
        """Identity of the data: a cursor of another id says nothing about this store."""
        return self._database.store_id

    def append(self, writer: str, new: Sequence[Trace]) -> AppendResult:
        """Store ``new`` in order, in one transaction, and evict what no longer fits.

        A trace whose (request_id, choice_index) is stored already is not stored again. ValueError
        names a trace whose arrays do not fit its tokens, before anything is written.
        """
        rows = [NewRow(trace, encode(trace)) for trace in new]
        self._require_disk(sum(row.num_bytes for row in rows))
        with self._database.writing() as connection:
            fresh = without_duplicates(connection, rows)
            self._evict_old(connection)
            self._make_room(connection, sum(row.num_bytes for row in fresh))
            if fresh:
                last_seq = lock_writer(connection, writer)
                insert_rows(connection, writer, last_seq, fresh, self._now_s())
            self._make_room(connection, 0)
            surplus = self._surplus_bytes(connection)
        self._tidy(surplus)
        return AppendResult(written=len(fresh), duplicates=len(rows) - len(fresh))

    def read(self, cursor: Cursor, max_rows: int) -> list[StoredTrace]:
        """At most ``max_rows`` rows behind ``cursor``, roughly by time over writers.

        Within a writer by seq and without a gap but evicted and damaged rows; ``rows.advance``
        makes the next cursor. Empty only at the end.
        """
        while True:
            with self._database.reading() as connection:
                keys = keys_behind(connection, cursor, max_rows)
                rows = fetch(connection, keys)
            found = decoded_in_order(rows, keys)
            if found or not keys:
                return found
            cursor = advance_past(cursor, keys)  # all of them were damaged

    def newest(self, max_rows: int) -> list[RowKey]:
        """Keys of the rows stored last, newest first: for readers that need no history."""
        with self._database.reading() as connection:
            return newest_keys(connection, max_rows)

    def load(self, keys: Collection[RowKey]) -> list[StoredTrace]:
        """The rows of ``keys`` that still exist and are whole, in the order of ``keys``."""
        rows: list[FetchedRow] = []
        for piece in chunks(keys):  # a short transaction each
            with self._database.reading() as connection:
                rows.extend(fetch(connection, piece))
        return decoded_in_order(rows, keys)

    def set_kept(self, kept: Collection[RowKey]) -> int:
        """Make ``kept`` the rows that are evicted last; returns how many of them are.

        Keys come first-wanted first: those beyond a quarter of ``max_bytes`` are ordinary rows.
        """
        with self._database.writing() as connection:
            return mark_kept(connection, kept, self._max_bytes)

    def evict(self) -> int:
        """Delete rows beyond age and size now; returns how many. Appends do it as well."""
        with self._database.writing() as connection:
            deleted = self._evict_old(connection)
            deleted += self._make_room(connection, 0)
            surplus = self._surplus_bytes(connection)
        if deleted:
            self._empty_log()  # the age bound is a promise about bytes
        self._tidy(surplus)
        return deleted

    def count(self, selection: Selection) -> int:
        """How many rows ``purge(selection)`` would erase."""
        with self._database.reading() as connection:
            query = select(func.count()).select_from(traces).where(selected(selection))
            return int(connection.execute(query).scalar_one())

    def oldest_s(self, selection: Selection) -> float | None:
        """Unix time at which the oldest of the selected rows was stored; None without rows."""
        with self._database.reading() as connection:
            query = select(func.min(traces.c.stored_s)).where(selected(selection))
            oldest: float | None = connection.execute(query).scalar_one()
        return oldest

    def purge(self, selection: Selection) -> PurgeResult:
        """Erase the selected rows for good, kept ones too.

        The bytes are gone from the data files (and from SQLite's log) before this returns, unless
        a reader of another program holds them open: then ``overwritten`` is False and a later purge
        finishes it.
        """
        with self._database.writing() as connection:
            deleted = evict_where(connection, selected(selection))
            if deleted:
                connection.execute(update(purges).values(count=purges.c.count + 1))
            surplus = self._surplus_bytes(connection)
        overwritten = self._erase_deleted()
        self._tidy(surplus)
        return PurgeResult(rows=deleted, overwritten=overwritten)

    def stats(self) -> ReplayStats:
        """Counts and age; cheap enough for every scrape."""
        file_bytes = self._database.file_bytes()
        with self._database.reading() as connection:
            return read_stats(connection, file_bytes)

    def lease(self, holder: str, clock: Callable[[], float] = boot_s) -> Lease:
        """The right to train, of which one of all machines has the only one; not taken yet."""
        return Lease(self._database, holder, clock)

    def close(self) -> None:
        """Close all connections; the store is done."""
        self._database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _evict_old(self, connection: Connection) -> int:
        now_s = self._now_s()
        # Within so short a time no row of ours can be ahead by as much as counts, unless the clock
        # has gone back; those of another machine can wait for it.
        if not 0 <= now_s - self._redated_s < FOLLOWED_S:
            redate(connection, now_s)
            self._redated_s = now_s
        return evict_where(connection, stored_before(now_s - self._max_age_s))

    def _make_room(self, connection: Connection, num_bytes: int) -> int:
        """Evict until ``num_bytes`` more fit, by the rows' bytes and by the pages in use."""
        deleted = evict_bytes(connection, live_bytes(connection) + num_bytes - self._max_bytes)
        used = self._database.storage.used_bytes
        while (excess := used(connection) + num_bytes - self._share(USED_SHARE)) > 0:
            if not (evicted := evict_bytes(connection, excess)):
                break
            deleted += evicted
        return deleted

    def _surplus_bytes(self, connection: Connection) -> int:
        return self._database.storage.free_bytes(connection) - self._share(SPARE_SHARE)

    def _tidy(self, surplus_bytes: int) -> None:
        """Empty a long log; give surplus free pages back, after the log with their zeros."""
        if surplus_bytes <= 0 and not self._database.storage.log_is_long():
            return
        if self._empty_log() and surplus_bytes > 0:
            try:
                self._database.release_free_pages(surplus_bytes)
            except ReplayStoreError:
                return  # the next append finds the surplus again
            self._empty_log()

    def _empty_log(self) -> bool:
        """Whether the log is empty now; an error here must not pass for one of the last commit."""
        try:
            return self._database.checkpoint()
        except ReplayStoreError:
            return False

    def _erase_deleted(self) -> bool:
        """Whether it is done; the rows are deleted either way."""
        try:
            return self._database.erase_deleted()
        except ReplayStoreError:
            return False

    def _require_disk(self, num_bytes: int) -> None:
        """Refuse to let a log grow that somebody's long read keeps from being emptied."""
        storage = self._database.storage
        if not storage.log_is_long() or self._empty_log():
            return
        # New rows stand in the log once, and so do the zeros over the rows they push out.
        if self._database.file_bytes() + 2 * num_bytes > self._share(FILE_SHARE):
            raise ReplayStoreError("replay store: a long read keeps its log from being emptied")

    def _share(self, share: float) -> int:
        return int(share * self._max_bytes)


def open_store(
    url: str, config: ReplayConfig, now_s: Callable[[], float] | None = None
) -> ReplayStore:
    """Open the store, making it where missing; ReplayStoreError says in one line why not."""
    database = open_database(url, config.max_bytes)
    try:
        clock = now_s or SteadyClock(_newest_s(database))
    except BaseException:
        database.engine.dispose()
        raise
    return ReplayStore(database, config, clock)


def _newest_s(database: Database) -> float:
    """When the newest row was stored, 0 without rows."""
    with database.reading() as connection:
        return read_stats(connection, 0).newest_s or 0.0
