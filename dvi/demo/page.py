"""report.html: the picture and the numbers on one page that loads nothing.

Owns the markup; reads a report and nothing else.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dvi.demo.board import COLUMNS, block_cells, shown

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:960px;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;text-align:right;
border-bottom:1px solid #d0d7de}td:first-child,th:first-child{text-align:left}
svg{max-width:100%;height:auto}
"""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{cells}</tr>{body}</table>"


def identity_line(name: str, row: Mapping[str, Any]) -> str:
    """One sentence on one pass."""
    line = f"{name}: {row['identical']} of {row['compared']} answers identical to plain decoding"
    known = [item["margin"] for item in row["divergences"] if item["margin"] is not None]
    return f"{line}; largest margin {max(known):.1e} logits" if known else line


def speed_line(speed: Mapping[str, Any]) -> str:
    """One sentence on speed."""
    return (
        f"speed with the trainer beside it: {speed['served_tokens_per_s']:.1f} tok/s, plain "
        f"decoding {speed['plain_tokens_per_s']:.1f} tok/s with as many in flight: "
        f"{speed['served_over_plain']:.2f}x over the stream, "
        f"{shown(speed['last_ten_over_plain'])}x over the last ten requests of each domain"
    )


def tool_line(row: Mapping[str, Any]) -> str:
    """One sentence on tool calls."""
    return (
        f"{row['calls']} tool calls, no training: alpha {shown(row['alpha'])}, "
        f"{row['tokens_per_round']:.2f} tokens per round, {row['served_over_plain']:.2f}x plain"
    )


def phase_line(report: Mapping[str, Any]) -> str:
    """Where the seconds of the run went."""
    phases = ", ".join(f"{name} {value}" for name, value in report["phase_seconds"].items())
    return f"{report['seconds']} s: {phases}"


def page(report: Mapping[str, Any], picture: str) -> str:
    """The whole page; ``picture`` is an SVG element."""
    lines = [identity_line(name, row) for name, row in report["identity"].items()]
    lines.append(speed_line(report["speed"]))
    if report["tools"] is not None:
        lines.append(tool_line(report["tools"]))
    about = [
        (name, str(report[name]))
        for name in ("model", "drafter", "mode", "system_fingerprint", "created")
    ]
    about.append(("time", phase_line(report)))
    title = "A draft that learns from its own traffic"
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width'>",
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
        picture,
        "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>",
        "<p>alpha is accepted / judged proposals; tokens per round includes the token that the "
        "target adds itself.</p>",
        _table(COLUMNS, [block_cells(row) for row in report["blocks"]]),
    ]
    if report["control_blocks"]:
        parts.append("<h2>The same stream with the trainer off</h2>")
        parts.append(_table(COLUMNS, [block_cells(row) for row in report["control_blocks"]]))
    parts.append(_table(("about", ""), about))
    return "\n".join(parts) + "</html>\n"
