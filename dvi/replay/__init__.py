"""The replay store: the durable seam from the decode loop to the trainer.

Owns traces on disk; does not know who decodes or who trains.
"""

from dvi.replay.rows import (
    AppendResult,
    Cursor,
    ReplayStats,
    ReplayStoreError,
    RowKey,
    StoredTrace,
    WriterCounts,
    advance,
)
from dvi.replay.store import ReplayStore, default_url, open_store
from dvi.replay.writer import TraceWriter, new_writer_name

__all__ = [
    "AppendResult",
    "Cursor",
    "ReplayStats",
    "ReplayStore",
    "ReplayStoreError",
    "RowKey",
    "StoredTrace",
    "TraceWriter",
    "WriterCounts",
    "advance",
    "default_url",
    "new_writer_name",
    "open_store",
]
