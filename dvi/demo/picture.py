"""The picture: alpha and tokens per round per ten requests, with adapter versions.

Owns colors and axes; reads a report and nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ALPHA, LENGTH, CONTROL, EDGE = "#1f6feb", "#d2691e", "#8b949e", "#d0d7de"


def _centers(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    return [(row["requests"][0] + row["requests"][1]) / 2 for row in rows]


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float("nan") if row[name] is None else row[name] for row in rows]


def _mark_domains(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line and a name where the stream changes its domain."""
    seen: set[str] = set()
    for row in rows:
        if row["domain"] in seen:
            continue
        seen.add(row["domain"])
        start = row["requests"][0] - 0.5
        axes.axvline(start, color=EDGE, linewidth=1)
        axes.annotate(row["domain"], (start + 1, 1.02), xycoords=("data", "axes fraction"))


def _mark_versions(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for x, row in zip(_centers(rows), rows, strict=True):
        if row["alpha"] is not None:
            text = f"v{row['adapter_versions'][1]}"
            axes.annotate(text, (x, row["alpha"]), (0, 7), textcoords="offset points",
                          ha="center", fontsize=8, color=ALPHA)  # fmt: skip


def draw(report: Mapping[str, Any]) -> Figure:
    """The figure of one report."""
    rows, control = report["blocks"], report["control_blocks"]
    figure = Figure(figsize=(9, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.plot(_centers(rows), _values(rows, "alpha"), "o-", color=ALPHA, label="learning draft")
    if control:
        x, y = _centers(control), _values(control, "alpha")
        upper.plot(x, y, "s--", color=CONTROL, label="trainer off")
        upper.legend(loc="lower right", frameon=False)
    _mark_versions(upper, rows)
    upper.set_ylim(0, 1)
    upper.set_ylabel("acceptance rate alpha")
    x, y = _centers(rows), _values(rows, "tokens_per_round")
    lower.plot(x, y, "o-", color=LENGTH)
    if control:
        x, y = _centers(control), _values(control, "tokens_per_round")
        lower.plot(x, y, "s--", color=CONTROL)
    lower.axhline(1, color=EDGE)
    lower.set_ylim(bottom=0.8)
    lower.set_ylabel("tokens per round\n(bonus token included)")
    lower.set_xlabel("requests (points: ten each; v: newest adapter version that drafted)")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        _mark_domains(axes, rows)
    return figure


def svg(report: Mapping[str, Any]) -> str:
    """The figure as an SVG element without the XML head."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "dvi"}):
        draw(report).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_png(report: Mapping[str, Any], path: str) -> None:
    """The figure as a file."""
    draw(report).savefig(path, dpi=150)
