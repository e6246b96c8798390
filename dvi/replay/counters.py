"""The counter of each writer: made with its first row, forgotten with its last.

Every function runs inside the caller's write transaction; knows nothing of what a row holds.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, and_, delete, exists, func, insert, select, update

from dvi.replay.schema import GONE, traces, writers


def lock_writer(connection: Connection, writer: str) -> int:
    """The writer's last seq; its row is locked until commit, which orders that writer's appends.

    One without a row goes on behind all that are gone: it may be one of them that comes back, and
    readers know its seqs.
    """
    mine = writers.c.writer == writer
    locked = connection.execute(update(writers).where(mine).values(last_seq=writers.c.last_seq))
    if locked.rowcount == 0:
        gone = select(func.max(writers.c.last_seq)).where(writers.c.writer == GONE)
        last_seq = func.coalesce(gone.scalar_subquery(), 0)
        connection.execute(insert(writers).values(writer=writer, last_seq=last_seq))
    return int(connection.execute(select(writers.c.last_seq).where(mine)).scalar_one())


def forget_gone(connection: Connection, names: Collection[str]) -> None:
    """Delete the counters of those of ``names`` that have no row left; GONE keeps the highest."""
    has_rows = exists().where(traces.c.writer == writers.c.writer)
    gone = and_(writers.c.writer.in_(names), ~has_rows)
    highest = connection.execute(select(func.max(writers.c.last_seq)).where(gone)).scalar_one()
    if highest is None:
        return
    connection.execute(delete(writers).where(gone))
    last_seq = max(highest, lock_writer(connection, GONE))
    connection.execute(update(writers).where(writers.c.writer == GONE).values(last_seq=last_seq))
