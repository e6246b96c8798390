"""What the store asks of the database's file, and the answer of a server that owns its files.

Knows no SQL; the answer for SQLite stands in its own file.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection, Engine


class Storage(Protocol):
    """The physical side of a store. Byte figures are 0 where the database looks after itself."""

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

    def log_is_long(self) -> bool:
        """Whether the log has grown beyond its limit."""
        ...

    def file_bytes(self) -> int:
        """Bytes on disk, log included."""
        ...


class Server:
    """PostgreSQL and its like: autovacuum and log are the administrator's."""

    def used_bytes(self, connection: Connection) -> int:
        """Not ours to bound."""
        del connection
        return 0

    def free_bytes(self, connection: Connection) -> int:
        """Not ours to give back."""
        del connection
        return 0

    def release_free_pages(self, engine: Engine, num_bytes: int) -> None:
        """Autovacuum does."""
        del engine, num_bytes

    def checkpoint(self, engine: Engine) -> bool:
        """The server does."""
        del engine
        return True

    def log_is_long(self) -> bool:
        """Never ours to cut."""
        return False

    def file_bytes(self) -> int:
        """Unknown here."""
        return 0
