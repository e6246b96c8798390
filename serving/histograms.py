"""The six histograms: buckets of their own range, filled on the decode thread as things happen.

Owns bucket bounds and counts; knows nothing of Prometheus' text. ``LatencyHistograms`` is the
engine's observer.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from dataclasses import dataclass

WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
INTER_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
PAUSE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 1)
RATE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class HistogramView:
    """Cumulative counts as Prometheus wants them, the last bound being +Inf."""

    buckets: tuple[tuple[str, float], ...]
    total: float


class Histogram:
    """Counts observations by bucket. Any thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value`` so many times."""
        place = bisect.bisect_left(self._bounds, value)  # a bucket includes its bound
        with self._lock:
            self._counts[place] += times
            self._total += value * times

    def view(self) -> HistogramView:
        """A consistent copy."""
        with self._lock:
            counts, total = list(self._counts), self._total
        running, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            running += count
            buckets.append((bound, float(running)))
        return HistogramView(tuple(buckets), total)


class LatencyHistograms:
    """``dvi.decoding.EngineObserver`` into histograms."""

    def __init__(self) -> None:
        self._first_token = Histogram(WAIT_S)
        self._queue = Histogram(WAIT_S)
        self._inter_token = Histogram(INTER_TOKEN_S)
        self._request = Histogram(REQUEST_S)
        self._swap_pause = Histogram(PAUSE_S)
        self._acceptance = Histogram(RATE)

    def queue_wait(self, seconds: float) -> None:
        """One request got its row this long after it arrived."""
        self._queue.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """One request got its first tokens this long after it arrived."""
        self._first_token.observe(seconds)

    def inter_token(self, seconds: float, num_tokens: int) -> None:
        """A later delivery: every token of it counts with its share of the gap."""
        self._inter_token.observe(seconds, num_tokens)

    def request_done(self, seconds: float) -> None:
        """One request ended well."""
        self._request.observe(seconds)

    def request_acceptance(self, rate: float) -> None:
        """accepted / judged of one request."""
        self._acceptance.observe(rate)

    def swap_pause(self, seconds: float) -> None:
        """One exchange of draft weights."""
        self._swap_pause.observe(seconds)

    def views(self) -> dict[str, HistogramView]:
        """By metric name."""
        return {
            "dvi_time_to_first_token_seconds": self._first_token.view(),
            "dvi_queue_seconds": self._queue.view(),
            "dvi_inter_token_seconds": self._inter_token.view(),
            "dvi_request_seconds": self._request.view(),
            "dvi_swap_pause_seconds": self._swap_pause.view(),
            "dvi_request_acceptance_rate": self._acceptance.view(),
        }
