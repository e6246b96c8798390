"""/metrics: every name and every child from the start, closed labels, counters that never fall."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dvi.decoding import Outcome
from dvi.types import AcceptanceCounts, FinishReason, Source
from serving.counts import ServerCounts, outcome_of
from serving.histograms import Histogram, LatencyHistograms
from serving.metrics_source import MetricsSource, stats_before_start
from serving.prometheus import BuildInfo, MetricsSnapshot, render
from serving.trainer_status import TrainerStatusReader
from tests.serving.fakes import MAX_DRAFT_LEN, snapshot_of

POSITIONS = {str(position) for position in range(MAX_DRAFT_LEN)}
SOURCES = {"neural", "memory"}
# The interface's list: counters with label and children.
COUNTERS: dict[str, tuple[str, set[str]]] = {
    "dvi_requests_total": ("outcome", {"stop", "length", "cancelled", "rejected", "failed"}),
    "dvi_prompt_tokens_total": ("", set()),
    "dvi_prompt_tokens_reused_total": ("", set()),
    "dvi_generated_tokens_total": ("", set()),
    "dvi_cancelled_tokens_total": ("", set()),
    "dvi_rounds_total": ("", set()),
    "dvi_proposed_tokens_total": ("source", SOURCES),
    "dvi_judged_tokens_total": ("source", SOURCES),
    "dvi_accepted_tokens_total": ("source", SOURCES),
    "dvi_proposed_tokens_per_position_total": ("position", POSITIONS),
    "dvi_accepted_tokens_per_position_total": ("position", POSITIONS),
    "dvi_decode_seconds_total": ("phase", {"prefill", "draft", "verify", "commit", "log"}),
    "dvi_adapter_swaps_total": ("result", {"swapped", "refused"}),
    "dvi_gate_decisions_total": ("decision", {"promoted", "held", "refused", "rolled_back"}),
    "dvi_drift_events_total": ("kind", {"data", "engine"}),
    "dvi_ignored_fields_total": ("", set()),
    "dvi_tracking_rows_dropped_total": ("", set()),
    "dvi_trainer_cpu_seconds_total": ("", set()),
    "dvi_traces_written_total": ("", set()),
    "dvi_traces_dropped_total": (
        "reason",
        {"queue_full", "store_error", "duplicate", "opted_out"},
    ),
    "dvi_trainer_steps_total": ("", set()),
    "dvi_canary_rounds_total": ("", set()),
    "dvi_canary_first_proposed_tokens_total": ("arm", {"canary", "control"}),
    "dvi_canary_first_accepted_tokens_total": ("arm", {"canary", "control"}),
    "dvi_canary_decisions_total": ("decision", {"settled", "rolled_back", "left"}),
}
GAUGES: dict[str, tuple[str, set[str]]] = {
    "dvi_acceptance_rate": ("window", {"fast", "slow"}),
    "dvi_adapter_version": ("", set()),
    "dvi_canary_version": ("", set()),
    "dvi_owed_rollbacks": ("", set()),
    "dvi_policy_lag_versions": ("", set()),
    "dvi_adapter_promoted_timestamp_seconds": ("", set()),
    "dvi_probe_acceptance_rate": ("", set()),
    "dvi_draft_logprob_gap": ("", set()),
    "dvi_trainer_payback_ratio": ("", set()),
    "dvi_draft_length_tokens": ("", set()),
    "dvi_kv_used_ratio": ("", set()),
    "dvi_replay_rows": ("", set()),
    "dvi_replay_bytes": ("", set()),
    "dvi_trainer_up": ("", set()),
    "dvi_queue_depth": ("", set()),
    "dvi_running_requests": ("", set()),
}
HISTOGRAMS = {
    "dvi_time_to_first_token_seconds": 120.0,
    "dvi_queue_seconds": 120.0,
    "dvi_inter_token_seconds": 2.5,
    "dvi_request_seconds": 600.0,
    "dvi_swap_pause_seconds": 1.0,
    "dvi_request_acceptance_rate": 1.0,
}


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def empty() -> MetricsSnapshot:
    return snapshot_of(stats_before_start(MAX_DRAFT_LEN), ServerCounts())


def test_every_name_and_child_is_there_at_zero_from_the_start() -> None:
    found = samples(render(empty()))
    for name, (label, children) in (COUNTERS | GAUGES).items():
        values = {labels: value for (n, labels), value in found.items() if n == name}
        wanted = {frozenset({(label, c)}) for c in children} if label else {frozenset()}
        assert set(values) == wanted, name
        assert set(values.values()) == {0.0}, name
    for name, top in HISTOGRAMS.items():
        bounds = [dict(labels)["le"] for (n, labels), _ in found.items() if n == f"{name}_bucket"]
        assert max(float(bound) for bound in bounds if bound != "+Inf") == top
        assert "+Inf" in bounds
        assert found[f"{name}_count", frozenset()] == found[f"{name}_sum", frozenset()] == 0


def test_nothing_else_is_there_and_no_created_series() -> None:
    names = {name for name, _ in samples(render(empty()))}
    of_histograms = {f"{h}_{end}" for h in HISTOGRAMS for end in ("bucket", "count", "sum")}
    assert names == set(COUNTERS) | set(GAUGES) | of_histograms | {"dvi_build_info"}


def test_build_info_names_what_runs() -> None:
    labels = dict(
        next(labels for (name, labels) in samples(render(empty())) if name == "dvi_build_info")
    )
    assert labels == {"version": "0", "model": "tiny", "drafter": "block", "target": "tiny"}


def test_numbers_of_the_engine_reach_their_names() -> None:
    counts = AcceptanceCounts()
    counts.add_round(Source.NEURAL, 4, 3, 2)
    counts.add_round(Source.TARGET, 0, 0, 0)
    stats = replace(
        stats_before_start(MAX_DRAFT_LEN),
        generated_tokens=4,
        cancelled_tokens=1,
        counts=counts,
        proposed_per_position=(1, 1, 1, 1, 0, 0, 0, 0),
        accepted_per_position=(1, 1, 0, 0, 0, 0, 0, 0),
        swaps={"swapped": 2, "refused": 1},
        adapter_version=3,
        acceptance_fast=0.5,
    )
    server = ServerCounts()
    server.tokens_undelivered(2)
    server.trace_opted_out()
    shot = replace(snapshot_of(stats, server), current_version=5, traces_dropped={"duplicate": 4})
    found = samples(render(shot))

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("dvi_generated_tokens_total") == 4
    assert value("dvi_rounds_total") == 2
    assert value("dvi_cancelled_tokens_total") == 3
    assert value("dvi_proposed_tokens_total", source="neural") == 4
    assert value("dvi_judged_tokens_total", source="neural") == 3
    assert value("dvi_accepted_tokens_total", source="neural") == 2
    assert value("dvi_accepted_tokens_total", source="memory") == 0
    assert value("dvi_accepted_tokens_per_position_total", position="1") == 1
    assert value("dvi_adapter_swaps_total", result="refused") == 1
    assert value("dvi_policy_lag_versions") == 2
    assert value("dvi_acceptance_rate", window="fast") == 0.5
    assert value("dvi_traces_dropped_total", reason="duplicate") == 4
    assert value("dvi_traces_dropped_total", reason="opted_out") == 1


def test_vllms_counters_are_there_only_where_asked_and_say_what_ours_say() -> None:
    counts = AcceptanceCounts()
    counts.add_round(Source.NEURAL, 3, 3, 2)
    counts.add_round(Source.MEMORY, 1, 1, 1)
    counts.add_round(Source.TARGET, 0, 0, 0)
    stats = replace(
        stats_before_start(MAX_DRAFT_LEN),
        counts=counts,
        proposed_per_position=(2, 1, 1, *[0] * (MAX_DRAFT_LEN - 3)),
        accepted_per_position=(2, 1, *[0] * (MAX_DRAFT_LEN - 2)),
    )
    shot = replace(snapshot_of(stats, ServerCounts()), vllm_model="tiny")
    found = samples(render(shot))
    ours = samples(render(replace(shot, vllm_model=None)))
    of_vllm = {key: value for key, value in found.items() if key not in ours}
    # The labels that vLLM gives them: its dashboards select by model_name.
    labels = {"model_name": "tiny", "engine": "0"}
    name = "vllm:spec_decode_num_{}_total".format
    expected = {
        (name("drafts"), frozenset(labels.items())): 2.0,
        (name("draft_tokens"), frozenset(labels.items())): 3.0 + 1.0,
        (name("accepted_tokens"), frozenset(labels.items())): 2.0 + 1.0,
    }
    for position in range(MAX_DRAFT_LEN):
        own = frozenset((labels | {"position": str(position)}).items())
        expected[name("accepted_tokens_per_pos"), own] = (2.0, 1.0, 0.0)[min(position, 2)]
    assert of_vllm == expected
    total = sum(ours["dvi_accepted_tokens_total", frozenset({("source", s)})] for s in SOURCES)
    assert total == expected[name("accepted_tokens"), frozenset(labels.items())]


def test_a_bucket_includes_its_bound_and_counts_are_cumulative() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    view = histogram.view()
    assert view.buckets == (("1.0", 2.0), ("2.0", 3.0), ("+Inf", 4.0))
    assert view.total == 12.0


def test_every_token_of_a_delivery_counts_with_its_share_of_the_gap() -> None:
    histograms = LatencyHistograms()
    histograms.inter_token(0.02, 3)
    view = histograms.views()["dvi_inter_token_seconds"]
    assert view.buckets[-1][1] == 3
    assert view.total == pytest.approx(0.06)


def test_the_outcome_of_a_request_is_its_worst_choice() -> None:
    stop, length = FinishReason.STOP, FinishReason.LENGTH
    assert outcome_of([stop, stop]) is Outcome.STOP
    assert outcome_of([stop, length]) is Outcome.LENGTH
    assert outcome_of([length, FinishReason.CANCELLED]) is Outcome.CANCELLED
    assert outcome_of([FinishReason.CANCELLED, FinishReason.FAILED]) is Outcome.FAILED


def test_trainer_counters_never_fall(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    reader = TrainerStatusReader(path)
    assert reader.read().steps == 0
    path.write_text(json.dumps({"steps": 12, "cpu_seconds": 3.5, "gate": {"promoted": 2}}))
    assert reader.read().steps == 12
    for text in ('{"steps": 10, "cpu_seconds": 1, "gate": {"held": 1}}', "{torn", "[]", ""):
        path.write_text(text)
        status = reader.read()
        assert (status.steps, status.cpu_seconds) == (12, 3.5)
        assert status.decisions["promoted"] == 2
    path.write_text('{"steps": NaN, "draft_logprob_gap": "x"}')
    assert reader.read().steps == 12
    assert reader.read().draft_logprob_gap == 0.0
    path.unlink()
    assert reader.read().decisions["held"] == 1


def test_metrics_answer_before_the_model_is_loaded(tmp_path: Path) -> None:
    source = MetricsSource(
        build=BuildInfo("0", "tiny", "block", "tiny"),
        max_draft_len=MAX_DRAFT_LEN,
        counts=ServerCounts(),
        histograms=LatencyHistograms(),
        trainer=TrainerStatusReader(tmp_path / "status.json"),
    )
    assert samples(source.text()) == samples(render(empty()))
