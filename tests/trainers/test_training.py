"""The whole training: exact resume, the gate, publishing before and after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from dvi.registry import Act, Registry
from dvi.types import Trace
from tests.trainers.conftest import Uninterrupted, WorldMaker
from tests.trainers.world import World
from trainers.checkpoint import CheckpointRefused
from trainers.gate import Decision
from trainers.reports import StepReport, loss_values
from trainers.stream import replay_stream
from trainers.training import Publication, Training


def losses(done: list[object]) -> list[dict[str, float]]:
    return [loss_values(report.loss) for report in done if isinstance(report, StepReport)]


def adapters(registry: Registry) -> dict[int, dict[str, torch.Tensor]]:
    """Tensors of every version, with its list of head rows."""
    read = [registry.read(manifest.version) for manifest in registry.versions()]
    return {a.version: {**a.tensors, **(a.draft_vocab or {})} for a in read}


def assert_same_versions(one: Registry, other: Registry) -> None:
    ours, theirs = adapters(one), adapters(other)
    assert ours.keys() == theirs.keys()
    for version, tensors in ours.items():
        assert all(torch.equal(tensors[name], theirs[version][name]) for name in tensors)
    assert one.current() == other.current()


def run(training: Training) -> list[object]:
    return list(replay_stream(training))


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


def first_publication(training: Training) -> Publication:
    return next(item for item in replay_stream(training) if isinstance(item, Publication))


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


class KilledHere(BaseException):
    """Stands for kill -9 at one line."""


def kill_at(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool) -> None:
    """Die instead of (or right after) calling ``owner.name``."""
    original = getattr(owner, name)

    def dying(*arguments: object, **keywords: object) -> object:
        if after:
            original(*arguments, **keywords)
        raise KilledHere

    monkeypatch.setattr(owner, name, dying)


KILL_POINTS = [
    ("publish", False),  # checkpoint written, no version
    ("publish", True),  # version there, not promoted
    ("promote", False),
    ("promote", True),  # promoted, gate not closed in any checkpoint
    ("_point_to", False),  # promotion noted, pointer not moved
]


@pytest.mark.parametrize("kill_point", KILL_POINTS)
def test_a_kill_anywhere_in_publishing_neither_doubles_nor_loses_a_version(
    world_of: WorldMaker,
    traces: list[Trace],
    uninterrupted: Uninterrupted,
    monkeypatch: pytest.MonkeyPatch,
    kill_point: tuple[str, bool],
) -> None:
    name, after = kill_point
    expected = losses(uninterrupted.done)
    world = world_of("killed", traces)
    kill_at(monkeypatch, world.registry, name, after=after)
    with pytest.raises(KilledHere):
        run(world.training())
    monkeypatch.undo()
    assert_lineage_is_complete(world)
    resumed = world.training()
    done = run(resumed)
    assert losses(done) == expected[-len(losses(done)) :]
    assert_same_versions(uninterrupted.world.registry, world.registry)
    assert_lineage_is_complete(world)
    assert resumed.parts.intake.num_admitted == len(traces)


def assert_lineage_is_complete(world: World) -> None:
    """Every published version's step and parent stand in the newest checkpoint."""
    checkpoint, _ = world.fresh().parts.checkpoints.load()
    assert checkpoint is not None
    known = {(entry.step, entry.parent) for entry in checkpoint.lineage}
    for manifest in world.registry.versions():
        assert (manifest.checkpoint_step, manifest.parent) in known
        assert manifest.checkpoint_step <= checkpoint.counters.steps


def test_what_was_rolled_back_while_the_trainer_was_down_stays_so(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("world", traces[:12])
    kill_at(monkeypatch, world.registry, "promote", after=True)
    with pytest.raises(KilledHere):
        run(world.training())
    monkeypatch.undo()
    world.registry.rollback("a person")
    world.training()
    assert world.registry.current() == 0


def test_a_damaged_checkpoint_falls_back_and_still_knows_every_version(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    run(training)
    newest = training.save()
    newest.write_bytes(newest.read_bytes()[:-10])
    resumed = world.fresh()
    assert resumed.resume(new_id=99) == [newest]
    assert resumed.parts.versions.training_id == 7
    assert resumed.parts.learner.num_steps > 0
    known = {entry.version for entry in resumed.parts.versions.lineage}
    assert known == {manifest.version for manifest in world.registry.versions()}
    assert resumed.parts.intake.num_admitted <= len(traces)
    run(resumed)
    assert resumed.parts.intake.num_admitted == len(traces)


def test_a_checkpoint_of_another_base_is_refused_with_nothing_changed(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces[:10])
    training = world.training()
    run(training)
    training.save()
    other = world.fresh(fingerprint="another")
    with pytest.raises(CheckpointRefused, match="base_fingerprint"):
        other.resume(new_id=1)
    assert other.parts.learner.num_steps == 0


def test_without_a_checkpoint_training_starts_from_the_version_in_service(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    first = world.training()
    run(first)
    first.save()
    live = world.registry.current()
    for path in (world.folder / "trainer").glob("checkpoint-*"):
        path.unlink()
    second = world.training(training_id=8)
    served = second.parts.versions.served()[1]
    assert served is not None
    own = second.parts.learner.score(traces, live)
    with second.parts.learner.draft.showing(served):
        assert second.parts.learner.score(traces, live) == own
    publication = first_publication(second)
    assert publication.version is not None
    assert world.registry.manifest(publication.version).parent == live


def test_a_full_disk_while_publishing_leaves_no_half_act(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("world", traces)
    training = world.training()
    stream: Iterator[object] = replay_stream(training)
    while not training.is_gate_due():
        next(stream)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training.parts.versions.draft, "save", full)
    with pytest.raises(OSError, match="No space"):
        training.publish()
    assert world.registry.versions() == []
    assert all(entry.version is not None for entry in training.parts.versions.lineage)
    assert training.is_gate_due()
    monkeypatch.undo()
    assert training.publish() is not None
    assert_lineage_is_complete(world)


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
