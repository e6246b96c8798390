"""bench.json, the table and the picture of one bench.

Owns names and layout; reads measured numbers and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

Json = dict[str, Any]

BARS = ("#8b949e", "#c9d1d9", "#1f6feb", "#79b8ff", "#d2691e")


def _shown(row: Mapping[str, Any], digits: int) -> str:
    return f"{row['median']:.{digits}f} ({row['low']:.{digits}f}-{row['high']:.{digits}f})"


def _answer_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="whole answers, prompts included")
    for name in ("batch", "way", "tok/s (spread)", "vs plain", "alpha", "tokens/round"):
        table.add_column(name, justify="right")
    for row in report["answers"]:
        alpha = row["acceptance_rate"]
        table.add_row(
            str(row["batch_size"]),
            row["way"],
            _shown(row["tokens_per_s"], 1),
            f"{row['over_plain']:.2f}x",
            "-" if alpha is None else f"{alpha:.2f}",
            f"{row['tokens_per_round']:.2f}",
        )
    return table


def _step_table(report: Mapping[str, Any]) -> Table:
    table = Table(title="one decode step (plain: 1 position a row; draft: K + 1)")
    for name in ("batch", "way", "ms (spread)", "vs greedy"):
        table.add_column(name, justify="right")
    for row in report["steps"]:
        cells = (str(row["batch_size"]), row["way"], _shown(row["ms"], 1))
        table.add_row(*cells, f"{row['over_greedy']:.3f}x")
    return table


def print_report(report: Mapping[str, Any]) -> None:
    """The tables on stdout."""
    console = Console()
    console.print(_answer_table(report))
    console.print(_step_table(report))
    swaps = report["swaps"]
    if swaps:
        console.print(
            f"swap pause: median {swaps['median_ms']:.3f} ms, p99 {swaps['p99_ms']:.3f} ms, "
            f"largest {swaps['max_ms']:.3f} ms over {swaps['count']} swaps"
        )
    console.print(f"trace logging: {100 * report['log_share']['median']:.2f}% of decode time")


def draw(report: Mapping[str, Any]) -> Figure:
    """Tokens per second and step times, one group of bars a batch size."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, rows, key, label in (
        (left, report["answers"], "tokens_per_s", "tokens per second"),
        (right, report["steps"], "ms", "milliseconds a step"),
    ):
        sizes = list(dict.fromkeys(row["batch_size"] for row in rows))
        ways = list(dict.fromkeys(row["way"] for row in rows))
        width = 0.8 / len(ways)
        for place, way in enumerate(ways):
            own = [row for row in rows if row["way"] == way]
            x = [sizes.index(row["batch_size"]) + (place + 0.5) * width - 0.4 for row in own]
            heights = [row[key]["median"] for row in own]
            axes.bar(x, heights, width, label=way, color=BARS[place % len(BARS)])
        axes.set_xticks(range(len(sizes)), [f"batch {size}" for size in sizes])
        axes.set_ylabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    return figure


def write_report(report: Mapping[str, Any], folder: Path) -> None:
    """bench.json and bench.png in the folder, which is made if missing."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draw(report).savefig(str(folder / "bench.png"), dpi=150)
