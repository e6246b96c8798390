"""Gathers one snapshot of everything that /metrics and the tracker show.

Owns no number; knows where each one lives. Works before the model is loaded: all at 0.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dvi.decoding import EngineStats, Outcome, Phase
from dvi.tracking import Tracker
from dvi.types import AcceptanceCounts
from serving.canary import Canary, CanaryView
from serving.counts import ServerCounts
from serving.histograms import LatencyHistograms
from serving.owed import OwedRollbacks
from serving.prometheus import BuildInfo, MetricsSnapshot, render
from serving.runtime import Runtime
from serving.sentinel import Sentinel
from serving.supervisor import Supervisor
from serving.trace_log import TraceLog
from serving.trainer_status import TrainerStatusReader
from serving.watcher import AdapterWatcher


def stats_before_start(max_draft_len: int) -> EngineStats:
    """What an engine that has done nothing would say."""
    return EngineStats(
        requests=dict.fromkeys(Outcome, 0),
        prompt_tokens=0,
        reused_tokens=0,
        generated_tokens=0,
        cancelled_tokens=0,
        counts=AcceptanceCounts(),
        proposed_per_position=(0,) * max_draft_len,
        accepted_per_position=(0,) * max_draft_len,
        phase_s=dict.fromkeys(Phase, 0.0),
        swaps={},
        adapter_version=0,
        draft_len=0,
        acceptance_fast=0.0,
        acceptance_slow=0.0,
        kv_used_ratio=0.0,
        queue_depth=0,
        running=0,
        steps=0,
        step_faults=0,
        drafter_faults=0,
        last_step_s=time.monotonic(),
    )


@dataclass
class MetricsSource:
    """Filled in as the server starts; ``snapshot`` from any thread."""

    build: BuildInfo
    max_draft_len: int
    counts: ServerCounts
    histograms: LatencyHistograms
    trainer: TrainerStatusReader
    traces: TraceLog | None = None
    tracker: Tracker | None = None
    runtime: Runtime | None = None
    watcher: AdapterWatcher | None = None
    supervisor: Supervisor | None = None
    sentinel: Sentinel | None = None
    canary: Canary | None = None
    owed: OwedRollbacks | None = None
    vllm_model: str | None = None
    _before_start: EngineStats = field(init=False)

    def __post_init__(self) -> None:
        self._before_start = stats_before_start(self.max_draft_len)

    def stats(self) -> EngineStats:
        """The engine's, or zeros before there is one."""
        return self._before_start if self.runtime is None else self.runtime.engine.stats()

    def snapshot(self) -> MetricsSnapshot:
        """All numbers now."""
        traces = None if self.traces is None else self.traces.view()
        dropped_rows = 0.0
        if self.tracker is not None:
            dropped_rows = self.tracker.gauges()["tracking_rows_dropped"]
        return MetricsSnapshot(
            engine=self.stats(),
            server=self.counts.view(),
            histograms=self.histograms.views(),
            build=self.build,
            trainer=self.trainer.read(),
            trainer_up=self.supervisor is not None and self.supervisor.is_up(),
            traces_written=0 if traces is None else traces.written,
            traces_dropped={} if traces is None else traces.dropped,
            replay_rows=0 if traces is None else traces.rows,
            replay_bytes=0 if traces is None else traces.bytes,
            current_version=0 if self.watcher is None else self.watcher.in_service,
            promoted_s=0.0 if self.watcher is None else self.watcher.promoted_s,
            tracking_rows_dropped=int(dropped_rows),
            drift_events={} if self.sentinel is None else dict(self.sentinel.counts.events),
            guard_rollbacks=0 if self.sentinel is None else self.sentinel.counts.num_rollbacks,
            canary=CanaryView() if self.canary is None else self.canary.view(),
            owed_rollbacks=0 if self.owed is None else len(self.owed.versions()),
            vllm_model=self.vllm_model,
        )

    def text(self) -> bytes:
        """The body of /metrics."""
        return render(self.snapshot())
