"""study.md, study.json and study.png in the output folder.

Owns the layout; does not know what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from dvi.bench.part import Grid, Json, Section
from dvi.bench.report import draw


def markdown(grid: Grid) -> Iterator[str]:
    """A table of GitHub's Markdown."""
    yield f"### {grid.title[:1].upper()}{grid.title[1:]}"
    yield ""
    yield f"| {' | '.join(grid.columns)} |"
    yield f"|{'|'.join('---' for _ in grid.columns)}|"
    for row in grid.rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def write(section: Section, about: Json, folder: Path) -> None:
    """The three files; ``about`` is what was run."""
    lines = [f"{name}: {value}  " for name, value in about.items()]
    for grid in section.grids:
        lines += ["", *markdown(grid)]
    (folder / "study.md").write_text("\n".join(lines), encoding="utf-8")
    report = json.dumps({**about, **section.data}, indent=1)
    (folder / "study.json").write_text(report + "\n", encoding="utf-8")
    draw({"study": section}).savefig(str(folder / "study.png"), dpi=110)
