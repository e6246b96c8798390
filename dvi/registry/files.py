"""Durable and careful file work of the registry: fsync, locks, reads that follow no link.

Owns how bytes reach and leave the disk; does not know what a version means.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dvi.registry.manifest import RegistryError

LOCK_WAIT_S = 10.0  # a publish takes well under a second


def sync_file(path: Path) -> None:
    """Make the bytes of ``path`` durable and private."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_line(path: Path, line: bytes) -> None:
    """Append one line durably; a line torn by an earlier kill is ended first."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
        file.write((b"\n" if torn else b"") + line + b"\n")
        os.fsync(file.fileno())


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``; TimeoutError, nobody's wrong input, after LOCK_WAIT_S."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        while not try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                why = f"held by another process for {LOCK_WAIT_S:.0f} s"
                raise TimeoutError(errno.EBUSY, why, str(path))
            time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)  # gives the lock back, as the end of a killed process does


def try_lock(descriptor: int, kind: int) -> bool:
    """Take ``kind`` (LOCK_SH or LOCK_EX) now; False while another holds it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def open_folder(folder: Path) -> Iterator[int]:
    """A descriptor of ``folder`` itself, never of what a link in its place points to.

    Held with a shared lock: pruning takes the exclusive one, so what is read stays.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RegistryError(f"{folder.name} is not a folder of the registry") from error
    try:
        if not try_lock(descriptor, fcntl.LOCK_SH):
            raise RegistryError(f"{folder.name} is being removed")
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(folder: int, name: str) -> bytes:
    """Bytes of the regular file ``name`` in the open ``folder``; links and pipes are refused."""
    try:
        descriptor = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except OSError as error:
        raise RegistryError(f"{name} is missing or not a plain file") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RegistryError(f"{name} is not a plain file")
        return file.read()


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(data).hexdigest()
