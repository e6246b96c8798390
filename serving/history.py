"""The last hour of a few numbers, for the dashboard's curves.

Owns the points and the thread that takes them; reads numbers through the families of /metrics, so
that a curve and a scrape cannot disagree. Holds no content and no date: a point's time counts from
the machine's start, so that a wall clock set back neither hides new points nor bends the curves.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from dvi.decoding.faults import FAULTS
from dvi.replay.clock import boot_s
from serving.background import BackgroundThread
from serving.prometheus import (
    MetricsSnapshot,
    draft_counters,
    gauges,
    learning_counters,
    request_counters,
)

logger = logging.getLogger(__name__)

INTERVAL_S = 2.0
MAX_POINTS = 1800  # an hour
CURVES = (
    "dvi_acceptance_rate{fast}",
    "dvi_acceptance_rate{slow}",
    "dvi_adapter_version",
    "dvi_drift_events{data}",
    "dvi_drift_events{engine}",
    "dvi_generated_tokens",
    "dvi_rounds",
    "dvi_accepted_tokens{neural}",
    "dvi_accepted_tokens{memory}",
    "dvi_draft_length_tokens",
    "dvi_running_requests",
    "dvi_queue_depth",
)

Point = dict[str, float]


def flat(shot: MetricsSnapshot) -> Point:
    """Every counter and gauge by ``name`` or ``name{label value}``; counters without _total."""
    return dict(_flat(shot))


def _flat(shot: MetricsSnapshot) -> Iterator[tuple[str, float]]:
    for families in (request_counters, draft_counters, learning_counters, gauges):
        for family in families(shot):
            for sample in family.samples:
                if len(sample.labels) < 2:
                    label = "".join(f"{{{value}}}" for value in sample.labels.values())
                    yield family.name + label, float(sample.value)


class History(BackgroundThread):
    """Takes a point every ``interval_s`` until the end. ``since`` from any thread.

    ``series`` names these points and no others: counters and perhaps times of a server that was
    started again begin anew.
    """

    def __init__(
        self,
        snapshot: Callable[[], MetricsSnapshot],
        interval_s: float = INTERVAL_S,
        now_s: Callable[[], float] = boot_s,
    ) -> None:
        super().__init__("history")
        self.series = secrets.token_hex(4)
        self._snapshot = snapshot
        self._interval_s = interval_s
        self._now_s = now_s
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)
        self._lock = threading.Lock()

    def take(self) -> None:
        """One point now."""
        values = flat(self._snapshot())
        point = {"time_s": self._now_s(), **{name: values[name] for name in CURVES}}
        with self._lock:
            self._points.append(point)

    def since(self, series: str, time_s: float) -> list[Mapping[str, float]]:
        """The points taken after ``time_s``, oldest first; all where that is of another series."""
        after_s = time_s if series == self.series else -math.inf
        with self._lock:
            return [point for point in self._points if point["time_s"] > after_s]

    def _run(self) -> None:
        while True:
            try:
                self.take()
            except FAULTS:
                logger.exception("a point of the history was not taken")
            if self._stop.wait(self._interval_s):
                return
