"""http.json and the tables of an HTTP bench.

Owns names and layout; reads passes and nothing else.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dvi.bench.http import timing
from dvi.bench.http.timing import Pass
from dvi.bench.stats import spread
from dvi.config import DviConfig
from dvi.config.home import bench_dir

Json = dict[str, Any]

ALONE, HOSTILE, LONG = "engine alone", "hostile", "long prompt"


@dataclass(slots=True)
class Found:
    """Passes by name, in the order of the report."""

    passes: dict[str, list[Pass]] = field(default_factory=dict)
    hostile: list[Json] = field(default_factory=list)  # what the hostile client got, a repeat each

    def add(self, name: str, one: Pass) -> None:
        """One more repeat of a pass."""
        self.passes.setdefault(name, []).append(one)

    def num_failed(self) -> int:
        """Answers to streams that failed."""
        return sum(one.num_failed for own in self.passes.values() for one in own)


def _spread(values: Iterable[float | None]) -> Json | None:
    known = [value for value in values if value is not None]
    return dataclasses.asdict(spread(known)) if known else None


def _as_json(found: timing.Latency | None) -> Json | None:
    return None if found is None else dataclasses.asdict(found)


def _row(name: str, own: list[Pass]) -> Json:
    return {
        "pass": name,
        "requests": sum(len(one.replies) for one in own),
        "failed": sum(one.num_failed for one in own),
        "tokens_per_s": _spread(one.tokens_per_s() for one in own),
        "first_token_ms": _as_json(timing.first_token(own)),
        "inter_token_ms": _as_json(timing.inter_token(own)),
        "gap_ms": _as_json(timing.gap(own)),
        "longest_gap_over_median": _spread(one.longest_gap_over_median() for one in own),
    }


def _over_alone(found: Found, name: str) -> Json | None:
    """tokens/s of a pass over those of the engine alone in the same repeat."""
    if ALONE not in found.passes or name not in found.passes:
        return None
    pairs = zip(found.passes[name], found.passes[ALONE], strict=True)
    return _spread(one.tokens_per_s() / alone.tokens_per_s() for one, alone in pairs)


def _long_row(one: Pass) -> Json:
    late = max(one.replies, key=lambda reply: reply.stream)
    if late.error is not None or not late.times_s:
        return {"error": late.error or "no token"}
    return {
        "first_token_ms": 1e3 * (late.times_s[0] - late.sent_s),
        "longest_stall_ms": 1e3 * timing.longest_gap_during_s(one, late),
        "median_gap_ms": 1e3 * statistics.median(one.gaps_s()),
    }


def _hostile_rows(repeats: list[Json]) -> Json:
    rows: Json = {}
    for answered in repeats:
        for kind, row in answered.items():
            own = rows.setdefault(kind, {"statuses": {}, "slowest_ms": 0.0})
            for status, number in row["statuses"].items():
                own["statuses"][status] = own["statuses"].get(status, 0) + number
            own["slowest_ms"] = max(own["slowest_ms"], 1e3 * row["slowest_s"])
    return rows


def make_report(config: DviConfig, model: str, found: Found, seconds: float) -> Json:
    """Everything that was measured, as plain data."""
    most = f"{config.bench.max_streams} streams"
    return {
        "kind": "http",
        "model": model,
        "url": config.bench.url,
        "drafter": config.drafter.kind if config.bench.url is None else None,
        "answers": config.bench.answers,
        "max_tokens": config.bench.max_tokens,
        "seconds": round(seconds, 1),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "num_failed": found.num_failed(),
        "passes": [_row(name, own) for name, own in found.passes.items() if name != LONG],
        "over_engine_alone": {
            "http": _over_alone(found, most),
            "hostile": _over_alone(found, HOSTILE),
        },
        "long_prompt": _long_row(found.passes[LONG][0]),
        "hostile": _hostile_rows(found.hostile),
    }


def _cells(found: Mapping[str, float] | None) -> str:
    return "-" if found is None else f"{found['p50']:.0f} / {found['p95']:.0f} / {found['max']:.0f}"


def _times(row: Mapping[str, float] | None) -> str:
    return "-" if row is None else f"{row['median']:.2f} ({row['low']:.2f}-{row['high']:.2f})"


def print_report(report: Mapping[str, Any]) -> None:
    """The table and what is below it, on stdout."""
    console = Console()
    table = Table(title="streaming clients; milliseconds are p50 / p95 / largest")
    names = ("pass", "failed", "tok/s (spread)", "first token", "a token", "gap", "largest/median")
    for name in names:
        table.add_column(name, justify="right")
    for row in report["passes"]:
        table.add_row(
            row["pass"],
            f"{row['failed']} of {row['requests']}",
            _times(row["tokens_per_s"]),
            *(_cells(row[key]) for key in ("first_token_ms", "inter_token_ms", "gap_ms")),
            _times(row["longest_gap_over_median"]),
        )
    console.print(table)
    for name, ratio in report["over_engine_alone"].items():
        if ratio is not None:
            console.print(f"tokens/s over the engine alone, {name}: {_times(ratio)}")
    for kind, row in report["hostile"].items():
        statuses = ", ".join(f"{number} x {status}" for status, number in row["statuses"].items())
        console.print(f"hostile, {kind}: {statuses}; slowest {row['slowest_ms']:.0f} ms")
    late = report["long_prompt"]
    if "error" in late:
        console.print(f"a long prompt that joined failed: {late['error']}")
        return
    console.print(
        f"a long prompt joined: its first token after {late['first_token_ms']:.0f} ms, "
        f"longest stall of the others {late['longest_stall_ms']:.0f} ms, their median gap "
        f"{late['median_gap_ms']:.0f} ms"
    )


def show(report: Json, run_dir: Path, *, as_json: bool) -> None:
    """On disk (run folder and DVI_HOME/bench) and on stdout."""
    text = json.dumps(report, indent=1) + "\n"
    for folder in (run_dir, bench_dir()):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "http.json").write_text(text, encoding="utf-8")
    if as_json:
        sys.stdout.write(text)
    else:
        print_report(report)
        print(bench_dir() / "http.json")
