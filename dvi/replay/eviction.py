"""Which rows leave, and the totals that say how full the store is.

Every function runs inside the caller's write transaction and keeps ``totals`` in step with
``traces``; knows nothing of content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, tuple_, update

from dvi.replay.clock import FOLLOWED_S
from dvi.replay.counters import forget_gone
from dvi.replay.rows import RowKey, Selection
from dvi.replay.schema import contents, totals, traces
from dvi.types import ID_PART_MARK

KEPT_SHARE = 0.25  # of max_bytes, at most, for rows of the trainer's memory
_CHUNK = 256  # keys a statement; SQLite allows 32766 parameters, older ones 999


# Naming both values of the index's first column lets the index serve the age.
_KEPT_OR_NOT = traces.c.kept.in_((0, 1))
_SIZED = (traces.c.writer, traces.c.seq, traces.c.num_bytes, traces.c.kept)


class SizedRow(NamedTuple):
    """What eviction has to know of a row."""

    writer: str
    seq: int
    num_bytes: int
    kept: int  # 0 or 1

    @property
    def key(self) -> RowKey:
        """Its identity."""
        return RowKey(self.writer, self.seq)


def chunks(keys: Collection[RowKey]) -> Iterator[list[RowKey]]:
    """``keys`` in pieces that fit into one statement."""
    items = iter(keys)
    while piece := list(islice(items, _CHUNK)):
        yield piece


def add_to_totals(
    connection: Connection, rows: int, num_bytes: int, kept_rows: int = 0, kept_bytes: int = 0
) -> None:
    """Change the totals row by these amounts."""
    connection.execute(
        update(totals).values(
            rows=totals.c.rows + rows,
            bytes=totals.c.bytes + num_bytes,
            kept_rows=totals.c.kept_rows + kept_rows,
            kept_bytes=totals.c.kept_bytes + kept_bytes,
        )
    )


def live_bytes(connection: Connection) -> int:
    """Bytes of all rows."""
    return int(connection.execute(select(totals.c.bytes)).scalar_one())


def evict_bytes(connection: Connection, num_bytes: int) -> int:
    """Delete oldest rows, kept ones last, until ``num_bytes`` are free; returns rows deleted."""
    deleted = 0
    while num_bytes > 0 and (leaving := _oldest(connection, num_bytes)):
        _delete(connection, leaving)
        num_bytes -= sum(row.num_bytes for row in leaving)
        deleted += len(leaving)
    return deleted


def _oldest(connection: Connection, num_bytes: int) -> list[SizedRow]:
    """Rows that leave first, as many as hold ``num_bytes``, a chunk at most."""
    found: list[SizedRow] = []
    query = (
        select(*_SIZED)
        .order_by(traces.c.kept, traces.c.stored_s, traces.c.writer, traces.c.seq)
        .limit(_CHUNK)
    )
    with connection.execute(query) as rows:  # most appends read one
        for row in rows:
            found.append(SizedRow(*row))
            num_bytes -= row.num_bytes
            if num_bytes <= 0:
                break
    return found


def evict_where(connection: Connection, condition: ColumnElement[bool]) -> int:
    """Delete every row for which ``condition`` holds, kept or not; returns how many."""
    deleted = 0
    while page := connection.execute(select(*_SIZED).where(condition).limit(_CHUNK)).all():
        _delete(connection, [SizedRow(*row) for row in page])
        deleted += len(page)
    return deleted


def stored_before(time_s: float) -> ColumnElement[bool]:
    """Rows stored earlier; kept ones too, since the age bound is a promise about content."""
    return and_(_KEPT_OR_NOT, traces.c.stored_s < time_s)


def redate(connection: Connection, now_s: float) -> None:
    """Rows of a time to come are as old as now: the clock that dated them was put right since.

    Else they would outlive the age bound by as much, and pass for newer than what comes now.
    """
    is_ahead = and_(_KEPT_OR_NOT, traces.c.stored_s > now_s + FOLLOWED_S)
    connection.execute(update(traces).where(is_ahead).values(stored_s=now_s))


def _of_request(request_id: str) -> ColumnElement[bool]:
    """Rows of a client's request id, whole or of one part. LIKE would not tell A from a."""
    head = request_id + ID_PART_MARK
    column = traces.c.request_id
    return or_(column == request_id, func.substr(column, 1, len(head)) == head)


def selected(selection: Selection) -> ColumnElement[bool]:
    """Rows of ``selection``; ValueError when it has no condition, which would mean all rows."""
    conditions: list[ColumnElement[bool]] = []
    if selection.stored_before_s is not None:
        conditions.append(stored_before(selection.stored_before_s))
    if selection.request_id is not None:
        conditions.append(_of_request(selection.request_id))
    if selection.user_hash is not None:
        conditions.append(traces.c.user_hash == selection.user_hash)
    if not conditions:
        raise ValueError("purge wants a time, a request or a user")
    return and_(*conditions)


def _delete(connection: Connection, rows: Sequence[SizedRow]) -> None:
    for piece in chunks([row.key for row in rows]):
        for table in (contents, traces):
            connection.execute(delete(table).where(tuple_(table.c.writer, table.c.seq).in_(piece)))
    forget_gone(connection, {row.writer for row in rows})
    add_to_totals(
        connection,
        rows=-len(rows),
        num_bytes=-sum(row.num_bytes for row in rows),
        kept_rows=-sum(row.kept for row in rows),
        kept_bytes=-sum(row.num_bytes for row in rows if row.kept),
    )


def mark_kept(connection: Connection, kept: Collection[RowKey], max_bytes: int) -> int:
    """Make ``kept`` the kept rows, in the given order while they fit; returns how many are kept."""
    sizes: dict[RowKey, int] = {}
    for piece in chunks(kept):
        found = connection.execute(
            select(traces.c.writer, traces.c.seq, traces.c.num_bytes).where(
                tuple_(traces.c.writer, traces.c.seq).in_(piece)
            )
        )
        sizes.update({RowKey(row.writer, row.seq): row.num_bytes for row in found})
    wanted = _first_that_fit(kept, sizes, max_bytes)
    before = {
        RowKey(row.writer, row.seq)
        for row in connection.execute(
            select(traces.c.writer, traces.c.seq).where(traces.c.kept == 1)
        )
    }
    for value, keys in ((0, before - wanted), (1, wanted - before)):
        for piece in chunks(keys):
            connection.execute(
                update(traces)
                .where(tuple_(traces.c.writer, traces.c.seq).in_(piece))
                .values(kept=value)
            )
    kept_bytes = sum(sizes[key] for key in wanted)
    connection.execute(update(totals).values(kept_rows=len(wanted), kept_bytes=kept_bytes))
    return len(wanted)


def _first_that_fit(
    kept: Collection[RowKey], sizes: dict[RowKey, int], max_bytes: int
) -> set[RowKey]:
    fitting: set[RowKey] = set()
    room = int(KEPT_SHARE * max_bytes)
    for key in kept:
        if key in sizes and key not in fitting and sizes[key] <= room:
            fitting.add(key)
            room -= sizes[key]
    return fitting
