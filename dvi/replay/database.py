"""Opening the database: engine, tables, schema version, errors in one line.

Knows which kind of database it is; does not know what a trace is.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, insert, inspect, select
from sqlalchemy.engine import URL

from dvi.replay.address import check_url, one_line_errors
from dvi.replay.dialect import Storage
from dvi.replay.postgres import Server, with_limits
from dvi.replay.rows import ReplayStoreError
from dvi.replay.schema import (
    SCHEMA_VERSION,
    TRAINER,
    leases,
    metadata,
    purges,
    schema_info,
    totals,
)
from dvi.replay.sqlite import SqliteFile


class Database:
    """An open database whose tables are there and of our version.

    Where its file is removed or replaced, the next transaction fails, and later ones go to what is
    there now, made anew if need be: another store, with an id of its own.
    """

    def __init__(self, engine: Engine, storage: Storage) -> None:
        self.engine = engine
        self.storage = storage
        self._store_id = ""
        self._lock = threading.Lock()

    @property
    def store_id(self) -> str:
        """Made with the tables: another id means another store at the same place."""
        return self._store_id

    def prepare(self) -> None:
        """Make or check the tables; before the first transaction."""
        with self.engine.execution_options(dvi_writes=True).begin() as connection:
            self.storage.lock_schema(connection)
            self._store_id = _ensure_schema(connection, self.engine.url)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One short read transaction; the caller fetches everything before it leaves."""
        with one_line_errors():
            self._follow_file()
            with self.engine.begin() as connection:
                yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One write transaction: everything in it is there after a kill, or nothing."""
        with self.changing() as connection:
            # Two evictions at once would subtract a row twice. SQLite has one writer anyway.
            connection.execute(select(totals.c.id).with_for_update()).one()
            yield connection

    @contextmanager
    def changing(self) -> Iterator[Connection]:
        """A write transaction that touches no trace, so that it need not wait for those that do."""
        with one_line_errors():
            self._follow_file()
            options = self.engine.execution_options(dvi_writes=True)
            with options.begin() as connection:
                yield connection

    def _follow_file(self) -> None:
        with self._lock:
            if self.storage.has_moved():
                self.engine.dispose()
                self.storage.make_again()
                self.prepare()
                # Whoever was about to write has to see the other id first.
                raise ReplayStoreError("replay store: its file was removed or replaced")

    def checkpoint(self) -> bool:
        """Empty the write-ahead log; False while a reader forbids it."""
        with one_line_errors():
            return self.storage.checkpoint(self.engine)

    def erase_deleted(self) -> bool:
        """Leave no byte of deleted rows in the data files; False while somebody forbids it."""
        with one_line_errors():
            return self.storage.erase_deleted(self.engine)

    def file_bytes(self) -> int:
        """Bytes on disk."""
        with one_line_errors():
            self._follow_file()
            return self.storage.file_bytes(self.engine)

    def release_free_pages(self, num_bytes: int) -> None:
        """Shrink the file by so many bytes of free pages."""
        with one_line_errors():
            self.storage.release_free_pages(self.engine, num_bytes)


def open_database(url: str, max_bytes: int) -> Database:
    """Open, making file and tables where missing; ReplayStoreError says in one line why not."""
    parsed = check_url(url)
    with one_line_errors():
        database = Database(*_connect(parsed, max_bytes))
        try:
            database.prepare()
        except BaseException:
            database.engine.dispose()  # opening is tried again and again: no connection may be left
            raise
    return database


def is_there(url: str) -> bool:
    """Whether a store has been made at ``url``; makes nothing. ReplayStoreError as in opening."""
    parsed = check_url(url)
    if parsed.get_backend_name() == "sqlite":
        assert parsed.database is not None
        return Path(parsed.database).is_file()
    with one_line_errors():
        engine, _ = _connect(parsed, 0)
        try:
            with engine.begin() as connection:
                return inspect(connection).has_table(schema_info.name)
        finally:
            engine.dispose()


def _connect(url: URL, max_bytes: int) -> tuple[Engine, Storage]:
    """The engine, not connected yet. Its errors carry no parameters: those are content."""
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        engine = create_engine(url, hide_parameters=True)
        file = SqliteFile(Path(url.database), max_bytes)
        file.create_private()
        file.listen(engine)
        return engine, file
    # A connection that a restart of the server has cut is replaced before it is used.
    engine = create_engine(with_limits(url), hide_parameters=True, pool_pre_ping=True)
    server = Server()
    server.listen(engine)
    return engine, server


def _ensure_schema(connection: Connection, url: URL) -> str:
    """The store's id, after its tables were made if there were none."""
    if not inspect(connection).has_table(schema_info.name):
        metadata.create_all(connection)
        store_id = uuid.uuid4().hex
        connection.execute(insert(schema_info).values(version=SCHEMA_VERSION, store_id=store_id))
        connection.execute(insert(totals).values(id=1, rows=0, bytes=0, kept_rows=0, kept_bytes=0))
        connection.execute(insert(purges).values(id=1, count=0))
        connection.execute(insert(leases).values(name=TRAINER, holder="", term=0, beat=0))
        return store_id
    row = connection.execute(select(schema_info.c.version, schema_info.c.store_id)).one()
    if row.version > SCHEMA_VERSION:
        raise ReplayStoreError(
            f"{url.render_as_string()} has schema {row.version}, this dvi knows up to "
            f"{SCHEMA_VERSION}: use the newer dvi that wrote it"
        )
    if not inspect(connection).has_table(purges.name):  # a store from before purges were counted
        purges.create(connection)
        connection.execute(insert(purges).values(id=1, count=0))
    if not inspect(connection).has_table(leases.name):  # a store from before trainers had a lease
        leases.create(connection)
        connection.execute(insert(leases).values(name=TRAINER, holder="", term=0, beat=0))
    return str(row.store_id)
