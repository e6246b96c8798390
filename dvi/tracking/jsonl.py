"""``metrics.jsonl``: one JSON object a line, shared by server and trainer, rotated by size.

Owns that file and its one predecessor; does not know what the numbers mean.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from pathlib import Path

from dvi.tracking.base import Alert, KeptAdapter, MetricRow, Value


class JsonlSink:
    """Appends rows to ``path``; beyond ``max_bytes`` the file becomes ``path.1``.

    Several processes may append: every line is written under the file's lock, and whoever finds
    the file renamed opens the new one. Nothing is held open between rows.
    """

    name = "metrics.jsonl"
    errors: tuple[type[Exception], ...] = (OSError, ValueError, TypeError)

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def open(self) -> None:
        """Make the state folder if need be, private like all in it."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def write(self, row: MetricRow) -> None:
        """Append one line, whole or not at all where the system can."""
        line = to_line(row)
        while not self._append(line):
            pass

    def keep(self, adapter: KeptAdapter) -> None:
        """The registry keeps the files; the row of family ``adapter`` says enough here."""
        del adapter

    def alert(self, alert: Alert) -> None:
        """Nobody watches a file; the row of the event is in it."""
        del alert

    def close(self) -> None:
        """Nothing is open."""

    def _append(self, line: bytes) -> bool:
        """False when the file was or had to be renamed first."""
        descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held by others for one line at most
            size = os.fstat(descriptor).st_size
            if not self._is_current(descriptor):
                return False
            if size and size + len(line) > self._max_bytes:
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                return False
            # A process killed in a write, or a full disk, may have left half a line.
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, b"\n" + line if torn else line)
        finally:
            os.close(descriptor)
        return True

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False


def to_line(row: MetricRow) -> bytes:
    """The row as one line of strict JSON; a number that is not finite becomes null."""
    record: dict[str, Value | None] = {"time_s": round(row.time_s, 3), "family": row.family}
    for name, value in row.values.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        record[name] = value if finite else None
    return (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
