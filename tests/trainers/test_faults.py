"""A training that is killed, damaged or short of disk, and what the next one makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dvi.types import Trace
from tests.trainers.conftest import Uninterrupted, WorldMaker
from tests.trainers.verbs import assert_same_versions, first_publication, losses, run
from tests.trainers.world import World
from trainers.checkpoint import CheckpointRefused
from trainers.stream import replay_stream


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
