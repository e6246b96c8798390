"""What the trainer says about itself: one small JSON file that it replaces as a whole.

Owns the reading and the promise that no counter ever falls, whatever a restarted trainer writes.
Knows nothing of how a trainer works.
"""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DECISIONS = ("promoted", "held", "refused", "rolled_back")


@dataclass(frozen=True, slots=True)
class TrainerStatus:
    """Zero where the trainer has said nothing yet."""

    steps: int = 0
    cpu_seconds: float = 0.0
    decisions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DECISIONS, 0))
    draft_logprob_gap: float = 0.0
    probe_acceptance_rate: float = 0.0
    payback_ratio: float = 0.0


def _number(data: dict[str, Any], key: str) -> float:
    value = data.get(key)
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return float(value)


class TrainerStatusReader:
    """Reads the status file of one state folder. Any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest = TrainerStatus()
        self._lock = threading.Lock()

    def read(self) -> TrainerStatus:
        """The file's newest content; what was last read while it is missing or half there."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            data = None
        with self._lock:
            if isinstance(data, dict):
                self._newest = self._never_falling(data)
            return self._newest

    def last_written(self) -> tuple[int, int] | None:
        """Changes whenever the trainer has told something; no clock can mislead it."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _never_falling(self, data: dict[str, Any]) -> TrainerStatus:
        gate = data.get("gate")
        gate = gate if isinstance(gate, dict) else {}
        last = self._newest
        return TrainerStatus(
            steps=max(last.steps, int(_number(data, "steps"))),
            cpu_seconds=max(last.cpu_seconds, _number(data, "cpu_seconds")),
            decisions={
                name: max(last.decisions[name], int(_number(gate, name))) for name in DECISIONS
            },
            draft_logprob_gap=_number(data, "draft_logprob_gap"),
            probe_acceptance_rate=_number(data, "probe_acceptance_rate"),
            payback_ratio=_number(data, "payback_ratio"),
        )
