"""Value types of the replay store: keys, cursors, stored traces, counts.

Owns names only; knows neither SQL nor how a trace becomes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from dvi.types import Trace

Cursor: TypeAlias = Mapping[str, int]  # writer -> last seq read; JSON-able


class ReplayStoreError(RuntimeError):
    """The store cannot be opened, read or written now; one line, without content or password."""


class StoreUrlError(ReplayStoreError, ValueError):
    """``replay.url`` cannot be used on this machine, whatever the database does; one line."""


class RowKey(NamedTuple):
    """Identity of a stored trace for ever: a seq is never given out twice to a writer."""

    writer: str
    seq: int  # from 1, ascending in commit order of that writer


@dataclass(frozen=True, slots=True)
class StoredTrace:
    """A trace with its place in the store."""

    key: RowKey
    trace: Trace


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What one append did; written + duplicates = traces given."""

    written: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows to erase: those that meet every condition that is given; at least one has to be."""

    stored_before_s: float | None = None  # Unix time
    request_id: str | None = None  # as the client knows it: its parts and those of all keys too
    user_hash: str | None = None


@dataclass(frozen=True, slots=True)
class PurgeResult:
    """What a purge did."""

    rows: int
    overwritten: bool  # False: a reader of another program keeps old bytes in the log


@dataclass(frozen=True, slots=True)
class ReplayStats:
    """Size and age of the store."""

    rows: int
    bytes: int  # live row bytes, the figure that max_bytes bounds
    file_bytes: int  # on disk, write-ahead log included
    oldest_s: float | None  # Unix time at which the oldest row was stored
    newest_s: float | None
    kept_rows: int
    purges: int = 0  # that erased something, ever


@dataclass(frozen=True, slots=True)
class WriterCounts:
    """Fate of every trace that was offered to a writer and is not waiting."""

    written: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # queue_full, store_error, duplicate
    last_error: str = ""  # newest failure of the store, one line; empty after a success


def advance(cursor: Cursor, rows: Iterable[StoredTrace]) -> dict[str, int]:
    """The cursor after ``rows``, as ``ReplayStore.read(cursor, ...)`` gave them, were consumed."""
    return advance_past(cursor, (row.key for row in rows))


def advance_past(cursor: Cursor, keys: Iterable[RowKey]) -> dict[str, int]:
    """The cursor behind ``keys``."""
    moved = dict(cursor)
    for key in keys:
        moved[key.writer] = max(moved.get(key.writer, 0), key.seq)
    return moved
