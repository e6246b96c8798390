"""One helper for config leaves: a default, a one-line meaning, the allowed values or range.

The metadata is the single source of ``--help``, ``docs/config.md`` and validation.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(
    default: Any,
    meaning: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
) -> Any:
    """A dataclass field with its meaning; ``low`` and ``high`` are inclusive bounds."""
    metadata = {"meaning": meaning, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata=metadata)
