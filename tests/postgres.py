"""A PostgreSQL of the tests' own: a cluster in a temporary folder, run by an unprivileged user.

Owns finding, starting, stopping; knows no table. Nothing of an installed server is touched.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

INSTALL = "no PostgreSQL here (Debian: apt-get install postgresql; or DVI_POSTGRES_BIN=FOLDER)"
START_TIMEOUT_S = 30.0
USER = "dvi"
# Nothing has to survive a power loss, and starts should take no time.
SETTINGS = ("fsync=off", "full_page_writes=off", "shared_buffers=32MB", "max_connections=60")


def find_programs() -> Path | None:
    """The folder with initdb and postgres; Debian keeps it out of PATH."""
    named = os.environ.get("DVI_POSTGRES_BIN")
    on_path = shutil.which("initdb")
    folders = [Path(named)] if named else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    folders += [Path(on_path).resolve().parent] if on_path else []
    return next(
        (f for f in folders if (f / "initdb").is_file() and (f / "postgres").is_file()), None
    )


def unprivileged() -> str | None:
    """The user that the server runs as: it refuses root. None: ours."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def end_with_us() -> None:
    """In the child: a killed test run leaves no server behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Cluster:
    """One server with a password; one database for one test at a time."""

    programs: Path
    folder: Path
    port: int = field(default_factory=free_port)
    password: str = field(default_factory=lambda: secrets.token_hex(8))
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it answers."""
        return f"127.0.0.1:{self.port}"

    def create(self) -> None:
        """Make the cluster's files."""
        secret = self.folder / "password"
        secret.write_text(self.password)
        secret.chmod(0o644)  # the folder is 0700
        command = [str(self.programs / "initdb"), "-D", str(self.folder / "data"), "-U", USER]
        command += ["--no-sync", "--no-locale", "-E", "UTF8", "--auth=scram-sha-256"]
        command += ["--pwfile", str(secret)]
        user = unprivileged()
        subprocess.run(command, check=True, capture_output=True, user=user, cwd="/", timeout=120)

    def start(self) -> None:
        """Run until it answers."""
        command = [str(self.programs / "postgres"), "-D", str(self.folder / "data")]
        command += ["-p", str(self.port), "-h", "127.0.0.1", "-k", str(self.folder)]
        for setting in SETTINGS:
            command += ["-c", setting]
        with (self.folder / "log.txt").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                user=unprivileged(),
                cwd="/",
                preexec_fn=end_with_us,  # noqa: PLW1509 (no threads that hold locks at this point)
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise RuntimeError((self.folder / "log.txt").read_text()) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """At once, as a crash; what was committed is there after the next start."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)
            self.process = None

    def connect(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        """A plain connection that commits by itself."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=self.password,
            dbname=database,
            autocommit=True,
            connect_timeout=5,
        )

    def empty_database(self) -> str:
        """The URL of a database without tables: one is emptied each time, making many is slow.

        Connections that a test has left are ended.
        """
        with self.connect("postgres") as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = 'dvi'").fetchone()
            if found is None:
                connection.execute("CREATE DATABASE dvi")
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'dvi'"
            )
        with self.connect("dvi") as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return self.url("dvi")

    def url(self, name: str, password: str | None = None) -> str:
        """``replay.url`` of a database."""
        return (
            f"postgresql+psycopg://{USER}:{password or self.password}@127.0.0.1:{self.port}/{name}"
        )

    def file_bytes(self) -> bytes:
        """All bytes of tables and indexes."""
        with self.connect("postgres") as connection:
            connection.execute("CHECKPOINT")
        paths = (self.folder / "data" / "base").rglob("*")
        return b"".join(path.read_bytes() for path in paths if path.is_file())


@contextmanager
def running_cluster(programs: Path) -> Iterator[Cluster]:
    """A cluster from files to answers, and nothing left of it."""
    folder = Path(tempfile.mkdtemp(prefix="dvi-postgres-"))  # pytest's folders are root's alone
    cluster = Cluster(programs, folder)
    try:
        if (user := unprivileged()) is not None:
            shutil.chown(folder, user)
        cluster.create()
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
