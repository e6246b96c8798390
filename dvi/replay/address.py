"""The store's URL and the database's errors, each told in one line.

Owns what is said; opens nothing and knows no table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from sqlite3 import Error as SqliteError

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    SQLAlchemyError,
)

from dvi.replay.rows import ReplayStoreError, StoreUrlError

EXPECTED = "expected sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
DRIVER = "psycopg"
INSTALL = "pip install 'dvi-serving[postgres]'"
_BACKENDS = ("sqlite", "postgresql")
_MAX_LINE = 300


def check_url(url: str) -> URL:
    """The URL of a store that server and trainer can share.

    StoreUrlError for a URL that means nothing, another database, or a driver that is missing.
    """
    try:
        parsed = make_url(url)
        parsed.get_dialect()
    except ValueError as error:  # its text may be a part of the password
        raise StoreUrlError(f"replay.url: the port is no number; {EXPECTED}") from error
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        raise StoreUrlError(f"replay.url: {_first_line(error)}; {EXPECTED}") from error
    backend = parsed.get_backend_name()
    if backend not in _BACKENDS:
        raise StoreUrlError(f"replay.url: {backend} is not supported; {EXPECTED}")
    if backend == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreUrlError("replay.url: server and trainer need a file, not a memory database")
    if backend == "postgresql":
        _require_driver(parsed)
    return parsed


def _require_driver(url: URL) -> None:
    if url.get_driver_name() != DRIVER:
        raise StoreUrlError(
            f"replay.url: the driver is {DRIVER}, not {url.get_driver_name()}: write "
            f"postgresql+{DRIVER}://"
        )
    try:
        importlib.import_module(DRIVER)
    except ImportError as error:  # the package, or the client library under it
        raise StoreUrlError(
            f"replay.url: PostgreSQL needs {DRIVER} ({_first_line(error)}): {INSTALL}"
        ) from error


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Driver errors become ReplayStoreError without statement and parameters (content)."""
    try:
        yield
    except OperationalError as error:
        # Never about a row's content, and a failed connection tells its reason in later lines.
        raise ReplayStoreError(f"replay store: {_all_lines(error.orig or error)}") from error
    except DBAPIError as error:
        raise ReplayStoreError(f"replay store: {_first_line(error.orig or error)}") from error
    except (SQLAlchemyError, SqliteError, OSError) as error:
        raise ReplayStoreError(f"replay store: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _all_lines(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:_MAX_LINE]
