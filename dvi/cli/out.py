"""Results on stdout: a plain table or JSON.

Owns the layout; knows nothing of what it prints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Cell = str | int | float | None


def print_json(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2))


def _shown(cell: Cell) -> str:
    if cell is None:
        return "-"
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)


def print_table(rows: Sequence[Mapping[str, Cell]]) -> None:
    """Rows of the same keys as columns; nothing for no rows."""
    if not rows:
        return
    names = list(rows[0])
    cells = [[_shown(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in [names, *cells]) for i in range(len(names))]
    for line in [names, *cells]:
        print(
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        )
