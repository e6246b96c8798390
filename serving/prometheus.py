"""/metrics: every name of the interface with every child, from one snapshot a scrape.

Owns names, labels and help texts; counts nothing itself. A custom collector, so that children are
there at 0 from the start and no ``_created`` series come along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from dvi.decoding import EngineStats, Outcome, Phase
from dvi.types import AcceptanceCounts, Source
from serving.canary import DECISIONS as CANARY_DECISIONS
from serving.canary import ROLLED_BACK, CanaryView
from serving.counts import CountsView
from serving.histograms import HistogramView
from serving.sentinel import KINDS
from serving.trainer_status import DECISIONS, TrainerStatus
from serving.vllm_names import vllm_counters

SOURCES = (Source.NEURAL, Source.MEMORY)
DROP_REASONS = ("queue_full", "store_error", "duplicate", "opted_out")


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """Labels of dvi_build_info: names of software and models, no user's text."""

    version: str
    model: str
    drafter: str
    target: str


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything a scrape shows."""

    engine: EngineStats
    server: CountsView
    histograms: Mapping[str, HistogramView]
    build: BuildInfo
    trainer: TrainerStatus = field(default_factory=TrainerStatus)
    trainer_up: bool = False
    traces_written: int = 0
    traces_dropped: Mapping[str, int] = field(default_factory=dict)
    replay_rows: int = 0
    replay_bytes: int = 0
    current_version: int = 0  # the registry's
    promoted_s: float = 0.0  # Unix time
    tracking_rows_dropped: int = 0
    drift_events: Mapping[str, int] = field(default_factory=dict)
    guard_rollbacks: int = 0
    canary: CanaryView = field(default_factory=CanaryView)
    owed_rollbacks: int = 0
    vllm_model: str | None = None  # model_name of vLLM's counters; None: they are not shown


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for child, value in values.items():
        family.add_metric([child], value)
    return family


def _by_source(counts: AcceptanceCounts, name: str) -> dict[str, float]:
    empty = AcceptanceCounts()
    return {
        source.value: {
            "proposed": own.proposed,
            "judged": own.judged,
            "accepted": own.accepted,
        }[name]
        for source, own in ((s, counts.by_source.get(s, empty)) for s in SOURCES)
    }


def _by_position(values: tuple[int, ...]) -> dict[str, float]:
    return {str(position): value for position, value in enumerate(values)}


def request_counters(shot: MetricsSnapshot) -> Iterator[Metric]:
    """Requests and tokens."""
    stats, server = shot.engine, shot.server
    yield _counter(
        "dvi_requests",
        "HTTP requests for text by outcome.",
        "outcome",
        {outcome.value: server.outcomes[outcome] for outcome in Outcome},
    )
    plain = {
        "dvi_prompt_tokens": ("Prompt tokens read.", stats.prompt_tokens),
        "dvi_prompt_tokens_reused": (
            "Prompt tokens of a shared prefix, not computed again.",
            stats.reused_tokens,
        ),
        "dvi_generated_tokens": ("Tokens committed.", stats.generated_tokens),
        "dvi_cancelled_tokens": (
            "Tokens generated for requests that were then cancelled or failed.",
            stats.cancelled_tokens + server.undelivered_tokens,
        ),
        "dvi_rounds": ("Draft-verify-commit rounds.", stats.counts.rounds),
        "dvi_ignored_fields": ("Request keys that nobody defines.", server.ignored_fields),
        "dvi_traces_written": ("Traces committed to the store.", shot.traces_written),
        "dvi_tracking_rows_dropped": ("Metric rows lost.", shot.tracking_rows_dropped),
        "dvi_trainer_steps": ("Optimizer steps.", shot.trainer.steps),
        "dvi_trainer_cpu_seconds": ("CPU time of the trainer.", shot.trainer.cpu_seconds),
    }
    for name, (text, value) in plain.items():
        yield CounterMetricFamily(name, text, value=value)


def draft_counters(shot: MetricsSnapshot) -> Iterator[Metric]:
    """Proposals and their fate, by source and by position."""
    stats = shot.engine
    for name in ("proposed", "judged", "accepted"):
        yield _counter(
            f"dvi_{name}_tokens", f"Draft tokens {name}.", "source", _by_source(stats.counts, name)
        )
    yield _counter(
        "dvi_proposed_tokens_per_position",
        "Draft tokens proposed at a position of the round.",
        "position",
        _by_position(stats.proposed_per_position),
    )
    yield _counter(
        "dvi_accepted_tokens_per_position",
        "Draft tokens accepted at a position of the round.",
        "position",
        _by_position(stats.accepted_per_position),
    )
    yield _counter(
        "dvi_decode_seconds",
        "Time of the decode thread by phase.",
        "phase",
        {phase.value: stats.phase_s.get(phase, 0.0) for phase in Phase},
    )


def learning_counters(shot: MetricsSnapshot) -> Iterator[Metric]:
    """Adapters, gate, drift, traces."""
    swaps = {name: shot.engine.swaps.get(name, 0) for name in ("swapped", "refused")}
    yield _counter("dvi_adapter_swaps", "Adapter versions taken or refused.", "result", swaps)
    decisions = {name: shot.trainer.decisions[name] for name in DECISIONS}
    taken_out = shot.guard_rollbacks + shot.canary.decisions[ROLLED_BACK]
    decisions["rolled_back"] = max(decisions["rolled_back"], taken_out)
    yield _counter("dvi_gate_decisions", "Verdicts on new versions.", "decision", decisions)
    events = {kind: shot.drift_events.get(kind, 0) for kind in KINDS}
    yield _counter("dvi_drift_events", "Drift alarms by kind.", "kind", events)
    dropped = {reason: shot.traces_dropped.get(reason, 0) for reason in DROP_REASONS}
    dropped["opted_out"] += shot.server.opted_out
    dropped["duplicate"] += shot.server.duplicates
    yield _counter("dvi_traces_dropped", "Traces not stored, by reason.", "reason", dropped)


def canary_counters(shot: MetricsSnapshot) -> Iterator[Metric]:
    """Trials of new versions: both arms at the first proposed position, and how trials ended."""
    canary = shot.canary
    arms = {"canary": canary.canary, "control": canary.control}
    yield CounterMetricFamily(
        "dvi_canary_rounds", "Rounds that new versions drafted on trial.", value=canary.rounds
    )
    yield _counter(
        "dvi_canary_first_proposed_tokens",
        "First proposals of both arms of trials.",
        "arm",
        {arm: counts.tried for arm, counts in arms.items()},
    )
    yield _counter(
        "dvi_canary_first_accepted_tokens",
        "First proposals of both arms of trials that were accepted.",
        "arm",
        {arm: counts.accepted for arm, counts in arms.items()},
    )
    ended = {name: canary.decisions[name] for name in CANARY_DECISIONS}
    yield _counter("dvi_canary_decisions", "Trials by how they ended.", "decision", ended)


def gauges(shot: MetricsSnapshot) -> Iterator[Metric]:
    """Levels."""
    stats = shot.engine
    rate = GaugeMetricFamily(
        "dvi_acceptance_rate", "accepted / judged, moving average.", labels=["window"]
    )
    rate.add_metric(["fast"], stats.acceptance_fast)
    rate.add_metric(["slow"], stats.acceptance_slow)
    yield rate
    lag = max(shot.current_version - stats.adapter_version, 0)
    plain = {
        "dvi_adapter_version": (
            "Adapter version that drafts, but for a canary; 0 is untrained.",
            stats.adapter_version,
        ),
        "dvi_canary_version": ("Version on trial; 0 while there is none.", shot.canary.version),
        "dvi_owed_rollbacks": (
            "Versions taken out of service here that the registry could not be told yet.",
            shot.owed_rollbacks,
        ),
        "dvi_policy_lag_versions": ("Promoted version minus the one that drafts.", lag),
        "dvi_adapter_promoted_timestamp_seconds": ("Unix time of promotion.", shot.promoted_s),
        "dvi_probe_acceptance_rate": (
            "Teacher-forced acceptance on fixed probe answers.",
            shot.trainer.probe_acceptance_rate,
        ),
        "dvi_trainer_payback_ratio": (
            "Decode time that training saves within trainer.payback_s, estimated, over its CPU "
            "time; 0 while it is not known.",
            shot.trainer.payback_ratio,
        ),
        "dvi_draft_logprob_gap": (
            "Live against recomputed draft log-probability.",
            shot.trainer.draft_logprob_gap,
        ),
        "dvi_draft_length_tokens": ("Longest draft asked for in the last step.", stats.draft_len),
        "dvi_kv_used_ratio": ("Share of cache positions in use.", stats.kv_used_ratio),
        "dvi_replay_rows": ("Traces in the store.", shot.replay_rows),
        "dvi_replay_bytes": ("Live bytes in the store.", shot.replay_bytes),
        "dvi_trainer_up": ("1 while the trainer process runs.", float(shot.trainer_up)),
        "dvi_queue_depth": ("Choices waiting for a row.", stats.queue_depth),
        "dvi_running_requests": ("Choices on a row.", stats.running),
    }
    for name, (text, value) in plain.items():
        yield GaugeMetricFamily(name, text, value=value)
    build = shot.build
    info = GaugeMetricFamily(
        "dvi_build_info", "What runs here.", labels=["version", "model", "drafter", "target"]
    )
    info.add_metric([build.version, build.model, build.drafter, build.target], 1)
    yield info


HISTOGRAM_HELP = {
    "dvi_time_to_first_token_seconds": "From arrival to the first tokens, queue included.",
    "dvi_queue_seconds": "From arrival to a row.",
    "dvi_inter_token_seconds": "Gap between deliveries over the tokens of the later one.",
    "dvi_request_seconds": "From arrival to the last token.",
    "dvi_swap_pause_seconds": "Decoding stood still for an exchange of draft weights.",
    "dvi_request_acceptance_rate": "accepted / judged of a request.",
}


class _Once:
    """A collector that shows one snapshot."""

    def __init__(self, shot: MetricsSnapshot) -> None:
        self._shot = shot

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from request_counters(self._shot)
        yield from draft_counters(self._shot)
        yield from learning_counters(self._shot)
        yield from canary_counters(self._shot)
        yield from gauges(self._shot)
        if self._shot.vllm_model is not None:
            yield from vllm_counters(self._shot.engine, self._shot.vllm_model)
        for name, view in self._shot.histograms.items():
            yield HistogramMetricFamily(
                name, HISTOGRAM_HELP[name], buckets=view.buckets, sum_value=view.total
            )


def render(shot: MetricsSnapshot) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(shot))
    return generate_latest(registry)
