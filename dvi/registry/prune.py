"""Removing versions and leftovers without pulling a file from under a reader.

Called by the publisher, which holds the registry's lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from dvi.config.files import PART_PREFIX, sync_folder
from dvi.registry.files import try_lock


def remove_leftovers(root: Path) -> None:
    """Delete what killed publishers left; with the lock held nobody else is at work."""
    for path in root.glob(f"{PART_PREFIX}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_folders(folders: Iterable[Path]) -> None:
    """Delete these version folders; one that is being read stays until a later call."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not try_lock(descriptor, fcntl.LOCK_EX):
                continue
            # Renamed first: a kill in the middle must not leave half a version under its name.
            dead = folder.with_name(f"{PART_PREFIX}dead-{folder.name}")
            folder.rename(dead)
            sync_folder(folder.parent)
            shutil.rmtree(dead, ignore_errors=True)
        finally:
            os.close(descriptor)
