"""The server's curves: one row an interval while something happens, one a new adapter version.

Owns the thread and the choice of numbers; knows no sink.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from dvi.decoding.faults import FAULTS
from dvi.tracking import Tracker, Value
from serving.background import BackgroundThread
from serving.prometheus import MetricsSnapshot

logger = logging.getLogger(__name__)


def serve_row(shot: MetricsSnapshot) -> dict[str, Value]:
    """The numbers of one moment; ``tokens`` is the axis of the family."""
    stats = shot.engine
    row: dict[str, Value] = {
        "tokens": stats.generated_tokens,
        "rounds": stats.counts.rounds,
        "proposed": stats.counts.proposed,
        "judged": stats.counts.judged,
        "accepted": stats.counts.accepted,
        "cancelled_tokens": stats.cancelled_tokens + shot.server.undelivered_tokens,
        "requests": sum(shot.server.outcomes.values()),
        "adapter_version": stats.adapter_version,
        "queue_depth": stats.queue_depth,
        "running_requests": stats.running,
        "draft_length_tokens": stats.draft_len,
        "traces_written": shot.traces_written,
        "trainer_steps": shot.trainer.steps,
        "drift/alpha_fast": stats.acceptance_fast,
        "drift/alpha_slow": stats.acceptance_slow,
        "drift/event": sum(shot.drift_events.values()),
    }
    tokens_per_round = stats.counts.mean_accepted_length()
    if tokens_per_round is not None:
        row["tokens_per_round"] = tokens_per_round
    return row


class TrackingLoop(BackgroundThread):
    """Calls the tracker every ``interval_s`` until the end; a last row at the end."""

    def __init__(
        self,
        tracker: Tracker,
        snapshot: Callable[[], MetricsSnapshot],
        folder_of: Callable[[int], Path],  # of a version
        interval_s: float,
    ) -> None:
        super().__init__("tracking")
        self._tracker = tracker
        self._snapshot = snapshot
        self._folder_of = folder_of
        self._interval_s = interval_s
        self._last_tokens = -1
        self._last_version = -1

    def log_once(self) -> None:
        """Log what is new since the last call; an idle server writes nothing."""
        shot = self._snapshot()
        version = shot.engine.adapter_version
        if version != self._last_version:
            self._log_version(shot, version)
        elif shot.engine.generated_tokens == self._last_tokens:
            return
        self._last_tokens = shot.engine.generated_tokens
        self._tracker.log("serve", serve_row(shot))

    def log_drift(self, kind: str, before: float, after: float) -> None:
        """One drift event as a row of its own, and an alert; any thread."""
        tokens = self._snapshot().engine.generated_tokens
        row: dict[str, Value] = {
            "tokens": tokens,
            "drift/kind": kind,
            "drift/before": before,
            "drift/after": after,
        }
        self._tracker.log("serve", row)
        self._tracker.alert(
            f"dvi: {kind} drift",
            f"acceptance {before:.3f} -> {after:.3f} after {tokens} generated tokens",
        )

    def _log_version(self, shot: MetricsSnapshot, version: int) -> None:
        is_first = self._last_version < 0
        self._last_version = version
        row: dict[str, Value] = {"version": version, "serve_tokens": shot.engine.generated_tokens}
        self._tracker.log("adapter", row)
        folder = self._folder_of(version)
        if version and not is_first and folder.is_dir():
            self._tracker.artifact(version, folder)

    def _run(self) -> None:
        while True:
            stopped = self._stop.wait(self._interval_s)
            try:
                self.log_once()
            except FAULTS:
                logger.exception("a metrics row was not made")
            if stopped:
                return
