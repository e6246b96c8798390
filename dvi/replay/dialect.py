"""What the store asks of the database behind it.

Knows no SQL; the two answers are ``sqlite.SqliteFile`` and ``postgres.Server``.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection, Engine


class Storage(Protocol):
    """The physical side of a store. Byte figures are 0 where the database looks after itself."""

    def listen(self, engine: Engine) -> None:
        """Make every connection of the engine behave; once, before the first."""
        ...

    def lock_schema(self, connection: Connection) -> None:
        """Let one process at a time look for the tables and make them, until commit."""
        ...

    def used_bytes(self, connection: Connection) -> int:
        """Bytes of the pages that hold something."""
        ...

    def free_bytes(self, connection: Connection) -> int:
        """Bytes of pages in the file that hold nothing."""
        ...

    def release_free_pages(self, engine: Engine, num_bytes: int) -> None:
        """Shrink the file by so many bytes of free pages. Outside a transaction."""
        ...

    def checkpoint(self, engine: Engine) -> bool:
        """Empty the write-ahead log; False while a reader forbids it. Outside a transaction."""
        ...

    def erase_deleted(self, engine: Engine) -> bool:
        """Leave no byte of deleted rows in the data files; False while somebody forbids it."""
        ...

    def log_is_long(self) -> bool:
        """Whether the log has grown beyond its limit."""
        ...

    def file_bytes(self, engine: Engine) -> int:
        """Bytes on disk, log included where it is ours."""
        ...

    def has_moved(self) -> bool:
        """Whether connections write into a file that is no longer the one at its path."""
        ...

    def make_again(self) -> None:
        """After ``has_moved``: a file at the path, to be connected to anew. OSError: not now."""
        ...
