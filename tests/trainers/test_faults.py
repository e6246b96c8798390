"""A training that is killed, damaged or short of disk, and what the next one makes of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from dvi.registry import RegistryError
from dvi.types import Trace
from tests.trainers.conftest import Uninterrupted, WorldMaker
from tests.trainers.test_follow import Loop
from tests.trainers.verbs import assert_same_versions, first_publication, losses, run
from tests.trainers.world import World
from trainers.background import is_out_of_memory, train_in_background
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


OUT_OF_MEMORY = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 3 bytes")


def test_a_trainer_out_of_memory_says_so_ends_with_1_and_the_next_one_does_that_step_once(
    world_of: WorldMaker,
    traces: list[Trace],
    uninterrupted: Uninterrupted,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of("world", traces)
    training = world.training()
    backward = torch.Tensor.backward

    def full(tensor: torch.Tensor) -> None:
        if training.parts.learner.num_steps == 5:
            raise OUT_OF_MEMORY
        backward(tensor)

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("trainers.background.logger.error", said.append)
        patch.setattr("trainers.background.start_logging", lambda _config: None)
        patch.setattr("trainers.background.set_thread_modes", lambda _threads: None)
        patch.setattr("trainers.background.serve_training", lambda *_: run(training))
        patch.setattr(torch.Tensor, "backward", full)
        assert train_in_background(world.config, threading.Event(), "low") == 1
    assert [line.startswith("out of memory") for line in said] == [True]
    resumed = world.training()
    expected = losses(uninterrupted.done)
    done = losses(run(resumed))
    assert done == expected[-len(done) :]
    assert resumed.parts.learner.num_steps == len(expected)
    assert_same_versions(uninterrupted.world.registry, world.registry)


def test_a_fault_of_ours_is_not_taken_for_a_lack_of_memory() -> None:
    assert is_out_of_memory(OUT_OF_MEMORY)
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shape '[2, 3]' is invalid for input of size 4"))


def test_while_the_registry_is_away_training_waits_and_no_number_is_given_out_again(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces[:8])
    loop = Loop(world)
    loop.until_idle()
    assert world.registry.versions()
    root, away = world.registry.root, world.folder / "away"
    root.rename(away)
    world.store.append("w", traces[8:])
    for _ in range(5):
        loop.follower.turn()
    steps = loop.training.parts.learner.num_steps
    assert not loop.follower.turn()
    assert loop.training.parts.learner.num_steps == steps
    assert not root.exists()
    with pytest.raises(RegistryError, match="put it back"):
        loop.training.publish()
    away.rename(root)
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == len(traces) > steps
    published = [manifest.version for manifest in world.registry.versions()]
    assert published == list(range(1, len(published) + 1))
    assert len(published) > 1
    assert_lineage_is_complete(world)


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
