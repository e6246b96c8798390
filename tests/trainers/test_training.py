"""The whole training: exact resume, the gate, publishing before and after a kill."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from dvi.registry import Act
from dvi.types import Trace
from tests.trainers.conftest import Uninterrupted, WorldMaker
from tests.trainers.verbs import assert_same_versions, losses, run
from trainers.gate import Decision
from trainers.reports import StepReport
from trainers.stream import replay_stream
from trainers.training import Publication


def test_equal_seeds_give_equal_losses_and_adapters_bit_for_bit(
    world_of: WorldMaker, traces: list[Trace], uninterrupted: Uninterrupted
) -> None:
    world = world_of("other", traces)
    done = run(world.training())
    assert losses(done) == losses(uninterrupted.done)
    assert_same_versions(uninterrupted.world.registry, world.registry)
    assert len(losses(done)) == len(traces)  # one step a trace
    assert len(world.registry.versions()) >= 4


def test_stopped_and_resumed_equals_uninterrupted_bit_for_bit(
    world_of: WorldMaker, traces: list[Trace], uninterrupted: Uninterrupted
) -> None:
    whole, expected = uninterrupted.world, uninterrupted.done
    for stop in (1, 20, len(expected) - 1):
        world = world_of(f"cut{stop}", traces)
        first = world.training()
        done: list[object] = list(islice(replay_stream(first), stop))
        first.save()
        done += run(world.training())
        assert losses(done) == losses(expected), f"stopped after {stop} verbs"
        assert_same_versions(whole.registry, world.registry)


def test_a_kill_loses_steps_since_the_checkpoint_and_doubles_none(
    world_of: WorldMaker, traces: list[Trace], uninterrupted: Uninterrupted
) -> None:
    expected = losses(uninterrupted.done)
    world = world_of("killed", traces)
    killed = world.training()
    list(islice(replay_stream(killed), 25))  # and no save: as kill -9
    resumed = world.training()
    again = resumed.parts.learner.num_steps
    assert 0 < again <= killed.parts.learner.num_steps
    assert expected[again:] == losses(run(resumed))
    assert_same_versions(uninterrupted.world.registry, world.registry)
    intake = resumed.parts.intake
    assert intake.num_admitted == len(traces)


def test_an_untrained_gate_holds_out_what_no_step_has_seen(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    seen: set[object] = set()
    learner, rows = training.parts.learner, training.parts.rows
    train_step = learner.train_step

    def watched(batch: list[Trace], version: int) -> StepReport:
        seen.update(trace.request_id for trace in batch)
        return train_step(batch, version)

    learner.train_step = watched  # type: ignore[method-assign]
    judged = 0
    publish = training.publish

    def checked() -> Publication | None:
        nonlocal judged
        held_out = {r.trace.request_id for r in rows.load(list(training.parts.intake.holdout))}
        assert not held_out & seen
        judged += 1
        return publish()

    training.publish = checked  # type: ignore[method-assign]
    run(training)
    assert judged >= 4
    assert len(seen) > 14


def test_learning_goes_on_while_the_gate_waits_for_traces(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces[:8], min_holdout_traces=5, max_holdout_traces=5)
    training = world.training()
    done = run(training)
    assert len(losses(done)) == 8
    assert not any(isinstance(item, Publication) for item in done)
    assert len(training.parts.intake.holdout) == 4


def test_manifest_and_counters_hold_the_decision_and_both_numbers(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    publications = [item for item in run(training) if isinstance(item, Publication)]
    parent = 0
    for publication in publications:
        assert publication.version is not None
        manifest, verdict = world.registry.manifest(publication.version), publication.verdict
        assert manifest.parent == parent
        assert manifest.metrics["candidate_agreement"] == verdict.candidate.agreement
        assert manifest.metrics["served_agreement"] == verdict.served.agreement
        is_promoted = verdict.decision is Decision.PROMOTED
        assert manifest.metrics["gate_promoted"] == is_promoted
        parent = publication.version
    counters = training.counters()
    decisions = [publication.verdict.decision for publication in publications]
    assert counters.promoted == decisions.count(Decision.PROMOTED) >= 2
    assert counters.held == decisions.count(Decision.HELD)
    promoted = [e.version for e in world.registry.history() if e.act is Act.PROMOTE]
    assert world.registry.current() == promoted[-1]


def test_the_published_draft_accepts_more_than_the_untrained_one(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    run(training)
    version, adapter, fault = training.parts.versions.served()
    assert (version, fault) == (world.registry.current(), "")
    learner = training.parts.learner
    with learner.draft.showing(adapter):
        served = learner.score(traces, version).agreement
    with learner.draft.showing(None):
        untrained = learner.score(traces, 0).agreement
    assert served > untrained + 0.15


def test_a_worse_candidate_is_published_but_held(world_of: WorldMaker, traces: list[Trace]) -> None:
    world = world_of("world", traces)
    training = world.training()
    run(training)
    live = world.registry.current()
    assert live > 0
    training.parts.learner.draft.start_from(None)  # forgets everything
    training.parts.intake.holdout.extend(training.parts.intake.memory.newest)
    training.parts.intake.memory.newest.clear()
    publication = training.publish()
    assert publication is not None
    assert publication.verdict.decision is Decision.HELD
    assert publication.version == max(m.version for m in world.registry.versions())
    assert world.registry.current() == live
    assert training.counters().held >= 1


def test_a_non_finite_candidate_never_reaches_the_registry_and_learning_recovers(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    stream = replay_stream(training)
    next(item for item in stream if isinstance(item, Publication))
    before = len(world.registry.versions())
    while not training.is_gate_due():
        next(stream)
    with torch.no_grad():
        next(iter(training.parts.learner.optimizer.params.values())).fill_(torch.nan)
    publication = training.publish()
    assert publication is not None
    assert (publication.verdict.decision, publication.version) == (Decision.REFUSED, None)
    assert len(world.registry.versions()) == before
    assert training.counters().refused == 1
    rest = list(stream)
    assert not any(report.is_dropped for report in rest if isinstance(report, StepReport))


def test_values_gone_bad_are_replaced_by_those_in_service(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    stream = replay_stream(training)
    next(item for item in stream if isinstance(item, Publication))
    with torch.no_grad():
        next(iter(training.parts.learner.optimizer.params.values())).fill_(torch.nan)
    rest = [item for item in stream if isinstance(item, StepReport)]
    dropped = [report.is_dropped for report in rest]
    assert dropped[:8] == [True] * 8
    assert not any(dropped[8:])
    assert training.counters().dropped_steps == 8


def test_a_row_that_holds_no_number_is_never_drawn(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    bad = replace(traces[0], request_id="bad", logsumexp=np.full_like(traces[0].logsumexp, np.nan))
    world = world_of("world", [*traces[:10], bad, *traces[10:]])
    training = world.training()
    done = run(training)
    assert not any(report.is_dropped for report in done if isinstance(report, StepReport))
    counters = training.counters()
    assert (counters.unusable_rows, training.parts.intake.num_admitted) == (1, len(traces))


def test_rows_that_the_store_lost_leave_memory_and_gate_quietly(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("world", traces)
    training = world.training()
    stream = replay_stream(training)
    list(islice(stream, 20))
    lost = set(training.parts.intake.keys()[::2])
    load = world.store.load
    monkeypatch.setattr(world.store, "load", lambda keys: load([k for k in keys if k not in lost]))
    rest = list(stream)
    assert len(losses(rest)) > 5
    assert training.parts.intake.num_missing > 0
    assert all(k not in lost for k in training.parts.intake.memory.newest)


def test_reservoir_rows_are_marked_in_the_store(world_of: WorldMaker, traces: list[Trace]) -> None:
    world = world_of("world", traces)
    training = world.training()
    run(training)
    assert len(training.parts.intake.memory.reservoir) == 5
    assert world.store.stats().kept_rows >= 5


def test_every_step_draws_another_batch_also_after_a_dropped_one(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    training = world_of("world", traces, steps_per_trace=0.0).training()
    run(training)  # all rows are in, none is paid for
    drawn: list[int] = []
    draw = training.parts.intake.memory.draw

    def watched(size: int, newest_share: float, draw_index: int) -> object:
        drawn.append(draw_index)
        return draw(size, newest_share, draw_index)

    monkeypatch.setattr(training.parts.intake.memory, "draw", watched)
    training.train_once()
    with torch.no_grad():  # the next two losses are not finite
        next(iter(training.parts.learner.optimizer.params.values())).fill_(torch.nan)
    reports = [training.train_once() for _ in range(2)]
    assert all(report is not None and report.is_dropped for report in reports)
    assert drawn == [0, 1, 2]
