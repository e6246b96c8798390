"""Finding and fetching rows.

Every function runs inside the caller's read transaction and fetches everything; decoding happens
after the transaction, so that no reader holds the log open for long.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, and_, select, tuple_

from dvi.replay.encoding import Content, DamagedTrace, decode
from dvi.replay.eviction import chunks
from dvi.replay.rows import Cursor, ReplayStats, RowKey, StoredTrace
from dvi.replay.schema import GONE, contents, purges, totals, traces, writers

logger = logging.getLogger(__name__)

_CONTENT = (
    contents.c.header,
    contents.c.prompt_ids,
    contents.c.output_ids,
    contents.c.top_ids,
    contents.c.top_logits,
    contents.c.logsumexp,
    contents.c.rounds,
)


@dataclass(frozen=True, slots=True)
class FetchedRow:
    """One row, not decoded yet."""

    key: RowKey
    request_id: str
    domain: str
    user_hash: str
    content: Content

    def decoded(self) -> StoredTrace:
        """The trace."""
        trace = decode(self.request_id, self.domain, self.user_hash, self.content)
        return StoredTrace(self.key, trace)


def keys_behind(connection: Connection, cursor: Cursor, max_rows: int) -> list[RowKey]:
    """The next keys: within a writer by seq, over writers roughly by time."""
    counters = select(writers.c.writer, writers.c.last_seq).where(writers.c.writer != GONE)
    known = connection.execute(counters).all()
    streams = [
        _stream(connection, row.writer, cursor.get(row.writer, 0), max_rows)
        for row in known
        if row.last_seq > cursor.get(row.writer, 0)
    ]
    # A merge compares heads only: a clock that was set back cannot reorder one writer's rows.
    return [key for _, key in islice(heapq.merge(*streams), max_rows)]


def newest_keys(connection: Connection, max_rows: int) -> list[RowKey]:
    """Keys of the rows stored last, newest first."""
    query = select(traces.c.writer, traces.c.seq).order_by(
        traces.c.stored_s.desc(), traces.c.writer, traces.c.seq.desc()
    )
    return [RowKey(row.writer, row.seq) for row in connection.execute(query.limit(max_rows))]


def _stream(
    connection: Connection, writer: str, seq: int, max_rows: int
) -> list[tuple[float, RowKey]]:
    rows = connection.execute(
        select(traces.c.seq, traces.c.stored_s)
        .where(traces.c.writer == writer, traces.c.seq > seq)
        .order_by(traces.c.seq)
        .limit(max_rows)
    )
    return [(row.stored_s, RowKey(writer, row.seq)) for row in rows]


def fetch(connection: Connection, keys: Collection[RowKey]) -> list[FetchedRow]:
    """The rows of ``keys`` that exist, in no order."""
    same = and_(contents.c.writer == traces.c.writer, contents.c.seq == traces.c.seq)
    small = (traces.c.writer, traces.c.seq, traces.c.request_id, traces.c.domain)
    query = select(*small, traces.c.user_hash, *_CONTENT).join(contents, same)
    rows: list[FetchedRow] = []
    for piece in chunks(keys):
        found = connection.execute(query.where(tuple_(traces.c.writer, traces.c.seq).in_(piece)))
        for writer, seq, request_id, domain, user_hash, *columns in found:
            content = Content(*columns)
            rows.append(FetchedRow(RowKey(writer, seq), request_id, domain, user_hash, content))
    return rows


def decoded_in_order(rows: Iterable[FetchedRow], keys: Iterable[RowKey]) -> list[StoredTrace]:
    """The traces of ``rows`` in the order of ``keys``, without those that the disk altered."""
    found = {row.key: row for row in rows}
    traces: list[StoredTrace] = []
    for key in keys:
        if key not in found:
            continue
        try:
            traces.append(found[key].decoded())
        except DamagedTrace as error:
            logger.warning("replay store: a row is damaged and passed over: %s", error)
    return traces


def read_stats(connection: Connection, file_bytes: int) -> ReplayStats:
    """Totals and the two ends of the age, each one look into an index."""
    row = connection.execute(select(totals)).one()
    ends: list[float] = []
    for kept in (0, 1):
        for order in (traces.c.stored_s.asc(), traces.c.stored_s.desc()):
            age = select(traces.c.stored_s).where(traces.c.kept == kept).order_by(order).limit(1)
            ends.extend(connection.execute(age).scalars())
    return ReplayStats(
        rows=row.rows,
        bytes=row.bytes,
        file_bytes=file_bytes,
        oldest_s=min(ends, default=None),
        newest_s=max(ends, default=None),
        kept_rows=row.kept_rows,
        purges=connection.execute(select(purges.c.count)).scalar_one(),
    )
