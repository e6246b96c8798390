"""The dashboard at `/`: a page without data, and the numbers that it fetches with a key.

Owns what the page may load (nothing but its own two kinds of files) and the form of its data; knows
neither how numbers are counted nor how they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.staticfiles import StaticFiles

from serving.errors import invalid
from serving.histograms import HistogramView
from serving.history import History, flat
from serving.metrics_source import MetricsSource

STATIC = Path(__file__).resolve().parent / "static"
QUANTILES = (0.5, 0.95, 0.99)
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Files(StaticFiles):
    """Scripts and style of the page, under the page's own headers."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """As inherited, with our headers."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(HEADERS)
        return response


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Where the page's numbers come from. Any thread."""

    metrics: MetricsSource
    history: History
    content: str  # what is kept of prompts and answers, one sentence

    def data(self, series: str, since_s: float) -> dict[str, Any]:
        """All numbers now, and the points that ``History.since`` gives. No content."""
        shot = self.metrics.snapshot()
        build = shot.build
        return {
            "model": build.model,
            "drafter": build.drafter,
            "version": build.version,
            "content": self.content,
            "now": flat(shot),
            "latency": [
                {"name": name, **quantiles(view)}
                for name, view in shot.histograms.items()
                if name.endswith("_seconds")
            ],
            "series": self.history.series,
            "points": self.history.since(series, since_s),
        }


def quantiles(view: HistogramView) -> dict[str, float | None]:
    """Estimates of p50, p95 and p99 and the count; None before the first observation.

    Linear within a bucket, as Prometheus' histogram_quantile; beyond the last bound that bound.
    """
    count = view.buckets[-1][1]
    found: dict[str, float | None] = {"count": count}
    for share in QUANTILES:
        found[f"p{round(100 * share)}"] = _quantile(view.buckets, share * count) if count else None
    return found


def _quantile(buckets: Sequence[tuple[str, float]], rank: float) -> float:
    lower, below = 0.0, 0.0
    for bound, running in buckets:
        if running >= rank and running > below:
            if math.isinf(float(bound)):
                return lower
            return lower + (float(bound) - lower) * (rank - below) / (running - below)
        lower, below = float(bound), running
    return lower


def add_dashboard_routes(app: FastAPI, dashboard: Dashboard) -> None:
    """`/` and `/static` are open and hold nothing; `/dashboard/data` wants a key."""

    @app.head("/", include_in_schema=False)
    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html", headers=HEADERS)

    @app.get("/dashboard/data", include_in_schema=False)
    async def data(series: str = "", since: str = "0") -> Response:
        values = await run_in_threadpool(dashboard.data, series, _time(since))
        return JSONResponse(values, headers={"Cache-Control": "no-store"})

    app.mount("/static", Files(directory=STATIC), name="static")


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise invalid(f"since={text!r} is not the time of a point.", "since")
    return value
