"""The tables on the screen, bench.json and bench.png.

Owns the layout; reads sections and does not know which parts there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from dvi.bench.part import Bars, Json, Lines, Section

COLORS = ("#8b949e", "#1f6feb", "#d2691e", "#2da44e", "#79b8ff", "#a475f9", "#c9d1d9", "#e3b341")
COLUMNS = 2  # of panels
FILE_WIDTH = 140  # characters, where the tables go into a file


def print_section(section: Section) -> None:
    """Its tables and lines on stdout."""
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    for grid in section.grids:
        table = Table(title=grid.title)
        for name in grid.columns:
            table.add_column(name, justify="right")
        for row in grid.rows:
            table.add_row(*row)
        console.print(table)
    for line in [*section.notes, *([section.failure] if section.failure else [])]:
        console.print(line, highlight=False)


def draw(sections: Mapping[str, Section]) -> Figure:
    """All panels of all sections, two in a row."""
    panels = [panel for section in sections.values() for panel in section.panels]
    num_rows = max(1, -(-len(panels) // COLUMNS))
    figure = Figure(figsize=(6 * COLUMNS, 3.6 * num_rows), layout="constrained")
    grid = figure.subplots(num_rows, COLUMNS, squeeze=False)
    places = [axes for row in grid for axes in row]
    for axes, panel in zip(places, panels, strict=False):
        if isinstance(panel, Bars):
            _draw_bars(axes, panel)
        else:
            _draw_lines(axes, panel)
        axes.set_title(panel.title, fontsize=10)
        axes.set_ylabel(panel.unit)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    return figure


def _draw_bars(axes: Axes, panel: Bars) -> None:
    width = 0.8 / len(panel.series)
    for place, (name, heights) in enumerate(panel.series.items()):
        here = [(x, height) for x, height in enumerate(heights) if height is not None]
        left = [x + (place + 0.5) * width - 0.4 for x, _ in here]
        color = COLORS[place % len(COLORS)]
        axes.bar(left, [height for _, height in here], width, label=name, color=color)
    axes.set_xticks(range(len(panel.groups)), list(panel.groups), fontsize=8)


def _draw_lines(axes: Axes, panel: Lines) -> None:
    for place, (name, points) in enumerate(panel.series.items()):
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(x, y, "o-", label=name, color=COLORS[place % len(COLORS)], markersize=3)
    axes.set_xlabel(panel.x_label)
    axes.set_ylim(bottom=0)


def write_report(report: Json, sections: Mapping[str, Section], folder: Path) -> None:
    """bench.json and bench.png in the folder."""
    (folder / "bench.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draw(sections).savefig(str(folder / "bench.png"), dpi=120)
