"""status.json: what the trainer tells the server, one small file replaced as a whole.

Owns the file and that its counters never fall, also when a restart goes back to a checkpoint older
than what was last told. Does not know who reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dvi.config.files import replace_file

MONOTONE = (
    "steps",
    "cpu_seconds",
    "dropped_steps",
    "rows_admitted",
    "rows_missing",
    "rows_unusable",
)
GATE = ("promoted", "held", "refused", "rolled_back")


class StatusFile:
    """Writes status.json; reads what an earlier process left, once, in ``open``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.earlier: dict[str, Any] = {}

    def open(self) -> None:
        """Take over the counters of an earlier process; a damaged file counts as none."""
        self.earlier = read_status(self.path)

    def write(self, values: Mapping[str, Any], process_cpu_s: float) -> None:
        """Replace the file; a full disk is the caller's OSError."""
        status = dict(values)
        status["cpu_seconds"] = _number(self.earlier, "cpu_seconds") + process_cpu_s
        for name in MONOTONE:
            status[name] = max(_number(self.earlier, name), _number(status, name))
        gate, before = _table(status, "gate"), _table(self.earlier, "gate")
        status["gate"] = {name: max(_number(before, name), _number(gate, name)) for name in GATE}
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(self.path, json.dumps(status).encode(), durable=False)


def read_status(path: Path) -> dict[str, Any]:
    """The last status, or an empty one where there is none or it is not readable as JSON."""
    try:
        status = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name, 0)
    return value if isinstance(value, int | float) else 0


def _table(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}
