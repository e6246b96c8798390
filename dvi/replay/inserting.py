"""New rows: duplicates, the two inserts, the step of the writer's counter.

Every function runs inside the caller's write transaction; knows nothing of eviction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select, update

from dvi.replay.encoding import Content
from dvi.replay.eviction import add_to_totals
from dvi.replay.rows import RowKey
from dvi.replay.schema import contents, traces, writers
from dvi.types import Trace

# Small columns, three index entries and on average half a page of slack behind the content.
ROW_OVERHEAD_BYTES = 512
_CHUNK = 256


@dataclass(frozen=True, slots=True)
class NewRow:
    """A trace on its way in."""

    trace: Trace
    content: Content

    @property
    def num_bytes(self) -> int:
        """What the row counts against ``max_bytes``."""
        return self.content.num_bytes() + ROW_OVERHEAD_BYTES

    @property
    def identity(self) -> tuple[str, int]:
        """What may be stored once only."""
        return storable(self.trace.request_id), self.trace.sampling.choice_index


def storable(text: str) -> str:
    """``text`` without what a text column refuses: a request must not spoil its neighbours' batch.

    PostgreSQL knows no NUL, and a lone surrogate has no UTF-8; JSON may carry both.
    """
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def without_duplicates(connection: Connection, given: Sequence[NewRow]) -> list[NewRow]:
    """The rows whose identity is neither stored nor earlier in ``given``."""
    ids = list({row.identity[0] for row in given})
    seen: set[tuple[str, int]] = set()
    for start in range(0, len(ids), _CHUNK):
        found = connection.execute(
            select(traces.c.request_id, traces.c.choice_index).where(
                traces.c.request_id.in_(ids[start : start + _CHUNK])
            )
        )
        seen.update((row.request_id, row.choice_index) for row in found)
    fresh: list[NewRow] = []
    for row in given:
        if row.identity not in seen:
            seen.add(row.identity)
            fresh.append(row)
    return fresh


def insert_rows(
    connection: Connection, writer: str, last_seq: int, rows: Sequence[NewRow], now_s: float
) -> None:
    """Insert ``rows`` behind ``last_seq`` and move the writer's counter."""
    keys = [RowKey(writer, last_seq + 1 + i) for i in range(len(rows))]
    connection.execute(
        insert(traces),
        [_columns(key, row, now_s) for key, row in zip(keys, rows, strict=True)],
    )
    connection.execute(
        insert(contents),
        [{**key._asdict(), **asdict(row.content)} for key, row in zip(keys, rows, strict=True)],
    )
    connection.execute(
        update(writers).where(writers.c.writer == writer).values(last_seq=last_seq + len(rows))
    )
    add_to_totals(connection, rows=len(rows), num_bytes=sum(row.num_bytes for row in rows))


def _columns(key: RowKey, row: NewRow, now_s: float) -> dict[str, object]:
    request_id, choice_index = row.identity
    return {
        **key._asdict(),
        "request_id": request_id,
        "choice_index": choice_index,
        "stored_s": now_s,
        "kept": 0,
        "num_bytes": row.num_bytes,
        "domain": storable(row.trace.domain),
        "user_hash": row.trace.user_hash,
    }
