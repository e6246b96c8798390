"""Everything that only PostgreSQL needs: time limits, isolation, rewriting tables after a purge.

The one file with PostgreSQL's own SQL; knows nothing of traces. Pages, log and autovacuum are the
server's: byte figures that SQLite's file needs are 0 here.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError

from dvi.replay.schema import contents, traces

SCHEMA_LOCK = 0x6476_6901  # "dvi", 1: any number that no other program takes
# What a network or a stopped process may cost, each far below a user's patience: connecting 5 s,
# a lock 5 s, a statement 30 s, a transaction whose owner stands still 10 s (it holds the lock that
# every writer needs), a connection without an answer 15 s.
_CONNECTION = {
    "connect_timeout": "5",
    "application_name": "dvi",
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
_SESSION = "-c lock_timeout=5s -c statement_timeout=30s -c idle_in_transaction_session_timeout=10s"


def with_limits(url: URL) -> URL:
    """The URL with our time limits where it does not say its own."""
    own = {name: value for name, value in _CONNECTION.items() if name not in url.query}
    theirs = url.query.get("options", "")
    options = " ".join([_SESSION, *([theirs] if isinstance(theirs, str) else theirs)])
    return url.update_query_dict({**own, "options": options.strip()})


class Server:
    """A PostgreSQL database that several machines share."""

    def listen(self, engine: Engine) -> None:
        """Reads see one moment, as SQLite's do; writes see what was committed before their lock."""

        @event.listens_for(engine, "begin")
        def on_begin(connection: Connection) -> None:
            if not connection.get_execution_options().get("dvi_writes", False):
                connection.exec_driver_sql(
                    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                )

    def lock_schema(self, connection: Connection) -> None:
        """CREATE TABLE of two processes at once fails in one of them."""
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")

    def used_bytes(self, connection: Connection) -> int:
        """Autovacuum makes room within the tables."""
        del connection
        return 0

    def free_bytes(self, connection: Connection) -> int:
        """The next rows use it."""
        del connection
        return 0

    def release_free_pages(self, engine: Engine, num_bytes: int) -> None:
        """The server does."""
        del engine, num_bytes

    def checkpoint(self, engine: Engine) -> bool:
        """The server does."""
        del engine
        return True

    def erase_deleted(self, engine: Engine) -> bool:
        """Write the tables anew without what was deleted; False where a lock was not to be had.

        Writers wait meanwhile and try again. The server's log and backups are its administrator's.
        """
        options = engine.execution_options(dvi_writes=True, isolation_level="AUTOCOMMIT")
        with options.connect() as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            try:
                for table in (contents, traces):
                    connection.exec_driver_sql(f"VACUUM (FULL) {table.name}")
            except OperationalError:
                return False
            finally:
                connection.exec_driver_sql("RESET statement_timeout")
        return True

    def log_is_long(self) -> bool:
        """Never ours to cut."""
        return False

    def file_bytes(self, engine: Engine) -> int:
        """Bytes of the tables with their indexes and what lies outside their pages."""
        sizes = " + ".join(f"pg_total_relation_size('{t.name}')" for t in (contents, traces))
        with engine.connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT {sizes}").scalar_one())

    def has_moved(self) -> bool:
        """Its files are its own."""
        return False

    def make_again(self) -> None:
        """Never asked for."""
