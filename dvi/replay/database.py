"""Opening the database: engine, tables, schema version, errors in one line.

Knows which kind of database it is; does not know what a trace is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Error as SqliteError

from sqlalchemy import Connection, Engine, create_engine, insert, inspect, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from dvi.replay.dialect import Server, Storage
from dvi.replay.rows import ReplayStoreError
from dvi.replay.schema import SCHEMA_VERSION, metadata, purges, schema_info, totals
from dvi.replay.sqlite import SqliteFile


@dataclass(frozen=True, slots=True)
class Database:
    """An open database whose tables are there and of our version."""

    engine: Engine
    storage: Storage
    store_id: str  # made with the tables: another id means another store at the same place

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One short read transaction; the caller fetches everything before it leaves."""
        with _one_line_errors(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One write transaction: everything in it is there after a kill, or nothing."""
        with _one_line_errors():
            options = self.engine.execution_options(dvi_writes=True)
            with options.begin() as connection:
                # Two evictions at once would subtract a row twice. SQLite has one writer anyway.
                connection.execute(select(totals.c.id).with_for_update()).one()
                yield connection

    def checkpoint(self) -> bool:
        """Empty the write-ahead log; False while a reader forbids it."""
        with _one_line_errors():
            return self.storage.checkpoint(self.engine)

    def release_free_pages(self, num_bytes: int) -> None:
        """Shrink the file by so many bytes of free pages."""
        with _one_line_errors():
            self.storage.release_free_pages(self.engine, num_bytes)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Driver errors become ReplayStoreError without statement and parameters (content)."""
    try:
        yield
    except DBAPIError as error:
        raise ReplayStoreError(f"replay store: {str(error.orig).splitlines()[0]}") from error
    except (SQLAlchemyError, SqliteError, OSError) as error:
        raise ReplayStoreError(f"replay store: {str(error).splitlines()[0]}") from error


def open_database(url: str, max_bytes: int) -> Database:
    """Open, making file and tables where missing; ReplayStoreError says in one line why not."""
    parsed = _parse(url)
    with _one_line_errors():
        # Errors carry no parameters: those are content.
        engine = create_engine(parsed, hide_parameters=True, pool_pre_ping=False)
        storage: Storage = Server()
        if engine.dialect.name == "sqlite":
            assert parsed.database is not None
            storage = SqliteFile(Path(parsed.database), max_bytes)
            storage.create_private()
            storage.listen(engine)
        with engine.execution_options(dvi_writes=True).begin() as connection:
            store_id = _ensure_schema(connection, parsed)
    return Database(engine, storage, store_id)


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise ReplayStoreError(
            f"replay.url: {str(error).splitlines()[0]}; expected sqlite:///PATH or "
            "postgresql+psycopg://HOST/NAME"
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ReplayStoreError("replay.url: server and trainer need a file, not a memory database")
    return parsed


def _ensure_schema(connection: Connection, url: URL) -> str:
    """The store's id, after its tables were made if there were none."""
    if not inspect(connection).has_table(schema_info.name):
        metadata.create_all(connection)
        store_id = uuid.uuid4().hex
        connection.execute(insert(schema_info).values(version=SCHEMA_VERSION, store_id=store_id))
        connection.execute(insert(totals).values(id=1, rows=0, bytes=0, kept_rows=0, kept_bytes=0))
        connection.execute(insert(purges).values(id=1, count=0))
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
    return str(row.store_id)
