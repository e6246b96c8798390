"""The replay store: many writers append traces, readers follow with cursors of their own.

Owns the transactions; does not know who trains on the rows.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Row, Select, and_, func, insert, select, tuple_, update

from dvi.config import ReplayConfig
from dvi.replay.database import Database, open_database
from dvi.replay.encoding import Content, decode, encode
from dvi.replay.eviction import (
    add_to_totals,
    chunks,
    evict_before,
    evict_bytes,
    live_bytes,
    mark_kept,
)
from dvi.replay.rows import (
    AppendResult,
    Cursor,
    ReplayStats,
    ReplayStoreError,
    RowKey,
    StoredTrace,
)
from dvi.replay.schema import contents, totals, traces, writers
from dvi.types import Trace

ROW_OVERHEAD_BYTES = 512  # small columns, three index entries, half a page of slack on average
USED_SHARE = 1.1  # pages in use, of max_bytes, before more rows leave than their bytes demand
SPARE_SHARE = 0.05  # free pages that stay in the file for the next rows
FILE_SHARE = 1.3  # file and log, of max_bytes, beyond which nothing is written
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
        self, database: Database, config: ReplayConfig, now_s: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._max_bytes = config.max_bytes
        self._max_age_s = config.max_age_days * _DAY_S
        self._now_s = now_s

    @property
    def store_id(self) -> str:
        """Identity of the data: a cursor of another id says nothing about this store."""
        return self._database.store_id

    def append(self, writer: str, traces_: Sequence[Trace]) -> AppendResult:
        """Store ``traces_`` in order, in one transaction, and evict what no longer fits.

        A trace whose (request_id, choice_index) is stored already is not stored again. ValueError
        names a trace whose arrays do not fit its tokens, before anything is written.
        """
        encoded = [encode(trace) for trace in traces_]
        self._make_room_on_disk()
        with self._database.writing() as connection:
            last_seq = _lock_writer(connection, writer)
            fresh = _without_duplicates(connection, traces_, encoded)
            sizes = [content.num_bytes() + ROW_OVERHEAD_BYTES for _, content in fresh]
            evict_before(connection, self._now_s() - self._max_age_s)
            evict_bytes(connection, live_bytes(connection) + sum(sizes) - self._max_bytes)
            keys = [RowKey(writer, last_seq + 1 + i) for i in range(len(fresh))]
            if fresh:
                _insert(connection, keys, fresh, sizes, self._now_s())
            self._fit_file(connection)
        if self._database.storage.log_is_long():
            self._database.checkpoint()
        return AppendResult(written=len(fresh), duplicates=len(traces_) - len(fresh))

    def read(self, cursor: Cursor, max_rows: int) -> list[StoredTrace]:
        """At most ``max_rows`` rows behind ``cursor``, roughly by time over writers.

        Within a writer exactly by seq and without a gap of committed rows; evicted rows are gaps.
        ``rows.advance`` makes the next cursor.
        """
        with self._database.reading() as connection:
            streams = [
                connection.execute(_behind(row.writer, cursor.get(row.writer, 0), max_rows)).all()
                for row in connection.execute(select(writers.c.writer, writers.c.last_seq)).all()
                if row.last_seq > cursor.get(row.writer, 0)
            ]
            merged = heapq.merge(*streams, key=lambda row: (row.stored_s, row.writer, row.seq))
            keys = [RowKey(row.writer, row.seq) for row, _ in zip(merged, range(max_rows))]
            rows = _fetch(connection, keys)
        return _decode_in_order(rows, keys)

    def load(self, keys: Collection[RowKey]) -> list[StoredTrace]:
        """The rows of ``keys`` that still exist, in the order of ``keys``."""
        rows: list[Row[tuple[object, ...]]] = []
        for piece in chunks(keys):  # one short transaction a piece: no reader holds the log long
            with self._database.reading() as connection:
                rows.extend(_fetch(connection, piece))
        return _decode_in_order(rows, keys)

    def set_kept(self, kept: Collection[RowKey]) -> int:
        """Make ``kept`` the rows that are evicted last; returns how many of them are.

        Keys come first-wanted first: those beyond a quarter of ``max_bytes`` are ordinary rows.
        """
        with self._database.writing() as connection:
            return mark_kept(connection, kept, self._max_bytes)

    def evict(self) -> int:
        """Delete rows beyond age and size now; returns how many. Appends do it as well."""
        with self._database.writing() as connection:
            deleted = evict_before(connection, self._now_s() - self._max_age_s)
            deleted += evict_bytes(connection, live_bytes(connection) - self._max_bytes)
            self._fit_file(connection)
        if deleted:
            self._database.checkpoint()
        return deleted

    def stats(self) -> ReplayStats:
        """Counts and age; cheap enough for every scrape."""
        with self._database.reading() as connection:
            row = connection.execute(select(totals)).one()
            ages = [
                connection.execute(
                    select(func.min(traces.c.stored_s), func.max(traces.c.stored_s)).where(
                        traces.c.kept == kept
                    )
                ).one()
                for kept in (0, 1)
            ]
        oldest = [age[0] for age in ages if age[0] is not None]
        newest = [age[1] for age in ages if age[1] is not None]
        return ReplayStats(
            rows=row.rows,
            bytes=row.bytes,
            file_bytes=self._database.storage.file_bytes(),
            oldest_s=min(oldest, default=None),
            newest_s=max(newest, default=None),
            kept_rows=row.kept_rows,
        )

    def close(self) -> None:
        """Close all connections; the store is done."""
        self._database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _fit_file(self, connection: Connection) -> None:
        """Evict until the used pages fit too, then give surplus free pages back."""
        storage = self._database.storage
        while excess := max(0, storage.used_bytes(connection) - int(USED_SHARE * self._max_bytes)):
            if not evict_bytes(connection, excess):
                break
        storage.release_free_pages(connection, int(SPARE_SHARE * self._max_bytes))

    def _make_room_on_disk(self) -> None:
        """Refuse to let a log grow that a long reader holds open."""
        storage = self._database.storage
        if not storage.log_is_long() or self._database.checkpoint():
            return
        if storage.file_bytes() > FILE_SHARE * self._max_bytes:
            raise ReplayStoreError("replay store: a long read keeps the log from being emptied")


def open_store(
    url: str, config: ReplayConfig, now_s: Callable[[], float] = time.time
) -> ReplayStore:
    """Open the store, making it where missing; ReplayStoreError says in one line why not."""
    return ReplayStore(open_database(url, config.max_bytes), config, now_s)


def _lock_writer(connection: Connection, writer: str) -> int:
    """The writer's last seq; its row is locked until commit, which orders that writer's appends."""
    locked = connection.execute(
        update(writers).where(writers.c.writer == writer).values(last_seq=writers.c.last_seq)
    )
    if locked.rowcount == 0:
        connection.execute(insert(writers).values(writer=writer, last_seq=0))
    return int(
        connection.execute(
            select(writers.c.last_seq).where(writers.c.writer == writer)
        ).scalar_one()
    )


def _without_duplicates(
    connection: Connection, given: Sequence[Trace], encoded: Sequence[Content]
) -> list[tuple[Trace, Content]]:
    ids = list({trace.request_id for trace in given})
    seen: set[tuple[str, int]] = set()
    for start in range(0, len(ids), 256):
        found = connection.execute(
            select(traces.c.request_id, traces.c.choice_index).where(
                traces.c.request_id.in_(ids[start : start + 256])
            )
        )
        seen.update((row.request_id, row.choice_index) for row in found)
    fresh: list[tuple[Trace, Content]] = []
    for trace, content in zip(given, encoded, strict=True):
        identity = (trace.request_id, trace.sampling.choice_index)
        if identity not in seen:
            seen.add(identity)
            fresh.append((trace, content))
    return fresh


def _insert(
    connection: Connection,
    keys: Sequence[RowKey],
    fresh: Sequence[tuple[Trace, Content]],
    sizes: Sequence[int],
    now_s: float,
) -> None:
    small: list[dict[str, object]] = []
    large: list[dict[str, object]] = []
    for key, (trace, content), num_bytes in zip(keys, fresh, sizes, strict=True):
        small.append(
            {
                **key._asdict(),
                "request_id": trace.request_id,
                "choice_index": trace.sampling.choice_index,
                "stored_s": now_s,
                "kept": 0,
                "num_bytes": num_bytes,
                "domain": trace.domain,
                "user_hash": trace.user_hash,
            }
        )
        large.append({**key._asdict(), **content.columns()})
    connection.execute(insert(traces), small)
    connection.execute(insert(contents), large)
    connection.execute(
        update(writers).where(writers.c.writer == keys[-1].writer).values(last_seq=keys[-1].seq)
    )
    add_to_totals(connection, rows=len(keys), num_bytes=sum(sizes))


def _behind(writer: str, seq: int, max_rows: int) -> Select[tuple[str, int, float]]:
    return (
        select(traces.c.writer, traces.c.seq, traces.c.stored_s)
        .where(traces.c.writer == writer, traces.c.seq > seq)
        .order_by(traces.c.seq)
        .limit(max_rows)
    )


def _fetch(connection: Connection, keys: Collection[RowKey]) -> list[Row[tuple[object, ...]]]:
    rows: list[Row[tuple[object, ...]]] = []
    same = and_(contents.c.writer == traces.c.writer, contents.c.seq == traces.c.seq)
    small = (traces.c.writer, traces.c.seq, traces.c.request_id, traces.c.domain)
    for piece in chunks(keys):
        rows.extend(
            connection.execute(
                select(*small, traces.c.user_hash, *contents.c[2:])
                .join(contents, same)
                .where(tuple_(traces.c.writer, traces.c.seq).in_(piece))
            ).all()
        )
    return rows


def _decode_in_order(
    rows: Sequence[Row[tuple[object, ...]]], keys: Collection[RowKey]
) -> list[StoredTrace]:
    found = {RowKey(row.writer, row.seq): row for row in rows}
    stored: list[StoredTrace] = []
    for key in keys:
        if key in found:
            row = found[key]
            content = Content(*row[5:])
            trace = decode(row.request_id, row.domain, row.user_hash, content)
            stored.append(StoredTrace(key, trace))
    return stored
