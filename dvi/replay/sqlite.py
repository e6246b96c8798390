"""Everything that only SQLite needs: pragmas, file modes, vacuum, the write-ahead log's size.

The one file with SQLite's own SQL; knows nothing of traces. ``SqliteFile`` has the verbs of
``dialect.Storage``.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from sqlite3 import Connection as SqliteConnection
from sqlite3 import OperationalError as SqliteOperationalError

from sqlalchemy import Connection, Engine, event

from dvi.replay.rows import ReplayStoreError

BUSY_TIMEOUT_S = 5.0  # how long a transaction waits for another process's write
_CHECKPOINT_WAIT_S = 0.05  # readers finish within milliseconds; a longer one is not waited for
PAGE_BYTES = 4096  # set before the first page is written
_AUTO_VACUUM_INCREMENTAL = 2


class SqliteFile:
    """One database file, its log, and what keeps both small."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._identity: tuple[int, int] | None = None  # device and inode that are connected to
        # A sixteenth of the budget leaves room for the page overhead within 1.3x of max_bytes.
        self.wal_limit_bytes = min(max(max_bytes // 16, 64 << 10), 32 << 20)

    def create_private(self) -> None:
        """Make the folder (0700) and the empty file (0600); SQLite gives the log the same mode."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        if self.path.stat().st_mode & 0o077:
            self.path.chmod(0o600)
        self._identity = self._on_disk()

    def has_moved(self) -> bool:
        """Whether somebody removed or replaced the file: what is written then would be lost.

        OSError where its whole folder is away: it may come back with the file, so nothing is made.
        """
        if self._on_disk() == self._identity:
            return False
        if not self.path.parent.is_dir():
            raise OSError(f"{self.path.parent} is gone")
        return True

    def make_again(self) -> None:
        """An empty file, unless another process was first or put one there."""
        self.create_private()

    def _on_disk(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def listen(self, engine: Engine) -> None:
        """Set and check the pragmas of every connection; transactions begin as we say."""

        @event.listens_for(engine, "connect")
        def on_connect(connection: SqliteConnection, _record: object) -> None:
            connection.isolation_level = None  # the driver's implicit BEGIN comes too late
            connection.text_factory = _text  # one altered byte must not hide a page of rows
            _set_pragmas(connection, self.wal_limit_bytes)

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            # A write takes its lock at once: upgrading a read later can fail at any statement.
            writes = connection.get_execution_options().get("dvi_writes", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    def lock_schema(self, connection: Connection) -> None:
        """BEGIN IMMEDIATE has done it."""
        del connection

    def used_bytes(self, connection: Connection) -> int:
        """Bytes of the pages that hold something, within a transaction."""
        pages = _number(connection, "page_count") - _number(connection, "freelist_count")
        return pages * PAGE_BYTES

    def free_bytes(self, connection: Connection) -> int:
        """Bytes of pages in the file that hold nothing."""
        return _number(connection, "freelist_count") * PAGE_BYTES

    def release_free_pages(self, engine: Engine, num_bytes: int) -> None:
        """Give so many bytes of free pages back to the file system, in a transaction of its own.

        After the one that freed them: zeros of ``secure_delete`` reach only pages that are still
        part of the file when the log is copied into it.
        """
        with engine.connect() as connection:
            num_pages = num_bytes // PAGE_BYTES
            # The pragma frees one page a step, and of the driver's calls only this one steps to
            # the end of a statement without columns.
            _driver(connection).executescript(f"PRAGMA incremental_vacuum({num_pages})")

    def checkpoint(self, engine: Engine) -> bool:
        """Move the log into the file and cut it to nothing; False while a reader holds it open."""
        with engine.connect() as connection:
            driver = _driver(connection)
            driver.execute(f"PRAGMA busy_timeout={int(_CHECKPOINT_WAIT_S * 1000)}")
            try:
                busy = driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                driver.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
        return bool(busy == 0)

    def erase_deleted(self, engine: Engine) -> bool:
        """``secure_delete`` has overwritten the rows: old bytes are only in the log."""
        return self.checkpoint(engine)

    def log_is_long(self) -> bool:
        """Whether the log has grown beyond its limit."""
        return self._log_bytes() > self.wal_limit_bytes

    def file_bytes(self, engine: Engine) -> int:
        """Bytes on disk, log included."""
        del engine
        return self.path.stat().st_size + self._log_bytes()

    def _log_bytes(self) -> int:
        log = self.path.with_name(self.path.name + "-wal")
        return log.stat().st_size if log.exists() else 0


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _driver(connection: Connection) -> SqliteConnection:
    driver = connection.connection.driver_connection
    assert isinstance(driver, SqliteConnection)
    return driver


def _number(connection: Connection, pragma: str) -> int:
    return int(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())


def _set_pragmas(connection: SqliteConnection, wal_limit_bytes: int) -> None:
    """Order matters: auto_vacuum works only before the first page of the file is written."""
    connection.execute(f"PRAGMA busy_timeout={int(BUSY_TIMEOUT_S * 1000)}")
    connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    _enter_wal(connection)
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute(f"PRAGMA journal_size_limit={wal_limit_bytes}")
    if connection.execute("PRAGMA secure_delete").fetchone()[0] != 1:
        raise ReplayStoreError("this SQLite cannot overwrite deleted bytes (secure_delete)")
    if connection.execute("PRAGMA auto_vacuum").fetchone()[0] != _AUTO_VACUUM_INCREMENTAL:
        raise ReplayStoreError("the replay file was made without incremental vacuum: not ours")


def _enter_wal(connection: SqliteConnection) -> None:
    """Switch to the write-ahead log; two processes that make a file together may collide once."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except SqliteOperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise ReplayStoreError(f"SQLite cannot keep a write-ahead log here (mode {mode})")
        return
