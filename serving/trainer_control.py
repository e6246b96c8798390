"""What the server asks of the trainer: one small JSON file that it replaces as a whole.

Owns the file; does not know whether a trainer runs. A pause survives restarts of both.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from dvi.config.files import replace_file


class TrainerControl:
    """Pause, resume, and the number of drifts seen. Any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def pause(self) -> None:
        """No step and no gate until ``resume``; OSError where the file cannot be written."""
        self._change(paused=True)

    def resume(self) -> None:
        """Go on; OSError where the file cannot be written."""
        self._change(paused=False)

    def drifted(self) -> None:
        """Traffic has changed once more."""
        self._change()

    def _change(self, paused: bool | None = None) -> None:
        with self._lock:
            now = self._read()
            drifts = now.get("drifts")
            wanted = {
                "paused": now.get("paused") is True if paused is None else paused,
                "drifts": (drifts if isinstance(drifts, int) else 0) + (paused is None),
            }
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(self._path, json.dumps(wanted).encode(), durable=False)

    def _read(self) -> dict[str, object]:
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}
