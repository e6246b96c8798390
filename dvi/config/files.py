"""Files that are written whole or not at all, and private (0600).

Owns how bytes get a name; does not know what they mean.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PART_PREFIX = ".tmp-"  # of what is not whole yet; a process killed while it writes leaves one


@contextmanager
def part_of(path: Path, data: bytes, *, durable: bool) -> Iterator[Path]:
    """A file beside ``path`` that holds ``data``, to be renamed or linked inside.

    Its name is nobody else's: several machines may write one path at a time.
    """
    descriptor, name = tempfile.mkstemp(prefix=f"{PART_PREFIX}{path.name}-", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        yield part
    finally:
        part.unlink(missing_ok=True)


def replace_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Put ``data`` at ``path``: readers see the old bytes or the new ones, also after a kill.

    ``durable``: and after a power loss. OSError, with the old bytes there, where it fails.
    """
    with part_of(path, data, durable=durable) as part:
        part.replace(path)
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
