"""The server's own part of ``state_dir``: one server at a time, and the key of user hashes.

Owns a lock file and a key file; knows nothing of store, adapters or checkpoints beside them.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dvi.config.files import part_of
from dvi.config.state_file import settle_state

KEY_FILE = "user_hash.key"
KEY_BYTES = 32


class StateFolderBusy(RuntimeError):
    """Another server uses this folder; one line."""


@contextmanager
def locked_state_folder(folder: Path) -> Iterator[Path]:
    """Make ``folder`` (0700) and hold it for this process; the system frees it after a kill.

    Two servers on one folder would run two trainers on one checkpoint, so the second is refused.
    Raises ValueError for a folder of a newer dvi.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateFolderBusy(
                f"another `dvi serve` uses {folder}; stop it or set state_dir"
            ) from error
        settle_state(folder)
        yield folder
    finally:
        os.close(descriptor)


def hash_name(key: bytes, name: str) -> str:
    """The keyed hash that stands for a name: the same again, and nobody can guess from it."""
    return hmac.new(key, name.encode(), hashlib.sha256).hexdigest()[:32]


def user_key(folder: Path, earlier: Path) -> bytes:
    """The secret key of the hashes that stand for users; made once, readable by the owner only.

    It lies in ``folder``, where all servers of one registry find it; that of ``earlier``, the state
    folder, is taken over, so that what was stored before can still be erased by user.
    """
    path = folder / KEY_FILE
    if not path.is_file():
        before = earlier / KEY_FILE
        _make_whole(path, _read_key(before) if before.is_file() else os.urandom(KEY_BYTES))
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    key = path.read_bytes()
    if len(key) != KEY_BYTES:
        raise ValueError(f"{path} is not a key of {KEY_BYTES} bytes; remove it")
    return key


def _make_whole(path: Path, key: bytes) -> None:
    """Write ``key`` unless another process, on any machine, was first; never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with part_of(path, key, durable=True) as part, suppress(FileExistsError):
        path.hardlink_to(part)
