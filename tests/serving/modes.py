"""A read-only folder that is read-only for root too.

Owns the capability of this thread; threads that it starts meanwhile have what it has then.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
IGNORES_MODES = 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH


@contextmanager
def modes_count() -> Iterator[None]:
    """File modes bind this thread, and threads started inside, also where we are root."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable, twice
    assert libc.capget(header, before) == 0
    within = (ctypes.c_uint32 * 6)(*before)
    within[0] &= ~IGNORES_MODES
    assert libc.capset(header, within) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """No file of ``folder`` or below can be made, removed or renamed."""
    folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o500)
    try:
        yield
    finally:
        for path in folders:
            path.chmod(0o700)
