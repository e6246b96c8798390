"""The replay store: the durable seam from the decode loop to the trainer.

Owns traces on disk; does not know who decodes or who trains.
"""

from dvi.replay.address import check_url
from dvi.replay.database import is_there
from dvi.replay.lease import Lease, LeaseLost
from dvi.replay.rows import (
    AppendResult,
    Cursor,
    PurgeResult,
    ReplayStats,
    ReplayStoreError,
    RowKey,
    Selection,
    StoredTrace,
    StoreUrlError,
    WriterCounts,
    advance,
)
from dvi.replay.store import ReplayStore, default_url, open_store
from dvi.replay.writer import TraceWriter, new_writer_name

__all__ = [
    "AppendResult",
    "Cursor",
    "Lease",
    "LeaseLost",
    "PurgeResult",
    "ReplayStats",
    "ReplayStore",
    "ReplayStoreError",
    "RowKey",
    "Selection",
    "StoreUrlError",
    "StoredTrace",
    "TraceWriter",
    "WriterCounts",
    "advance",
    "check_url",
    "default_url",
    "is_there",
    "new_writer_name",
    "open_store",
]
