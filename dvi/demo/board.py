"""The live table: one row for ten requests, growing while the stream runs.

Owns the screen; on anything but a terminal it prints one line a finished block instead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dvi.demo.answers import BLOCK, Answer, Block, split_blocks
from dvi.demo.report import block_row

COLUMNS = ("domain", "requests", "alpha", "tokens/round", "adapter", "tok/s")


def shown(value: float | None, digits: int = 2) -> str:
    """A number for a cell."""
    return "-" if value is None else f"{value:.{digits}f}"


def block_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of one row of the report's blocks."""
    first, last = row["adapter_versions"]
    return (
        row["domain"],
        f"{row['requests'][0]}-{row['requests'][1]}",
        shown(row["alpha"]),
        shown(row["tokens_per_round"]),
        f"v{first}" if first == last else f"v{first}-v{last}",
        shown(row["tokens_per_s"], 1),
    )


class Board:
    """A context manager that shows a pass; ``tell`` is called once an answer."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._answers: list[Answer] = []
        self._console = Console(file=sys.stderr)
        self._live = Live(console=self._console, auto_refresh=False)
        self._num_printed = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def tell(self, answer: Answer) -> None:
        """Add one finished answer."""
        self._answers.append(answer)
        blocks = split_blocks(self._answers)
        if self._console.is_terminal:
            self._live.update(self._table(blocks), refresh=True)
            return
        # A block is whole once a later one has begun; the last one is printed at ten answers.
        whole = [block for block in blocks if block.last - block.first == BLOCK - 1]
        for block in whole[self._num_printed :]:
            cells = zip(COLUMNS, block_cells(block_row(block)), strict=True)
            print(f"{self._title}: " + "  ".join(f"{k} {v}" for k, v in cells), file=sys.stderr)
        self._num_printed = max(self._num_printed, len(whole))

    def _table(self, blocks: list[Block]) -> Table:
        table = Table(title=self._title)
        for name in COLUMNS:
            table.add_column(name, justify="left" if name == "domain" else "right")
        for block in blocks:
            table.add_row(*block_cells(block_row(block)))
        return table
