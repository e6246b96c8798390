"""`dvi train data=replay`: one candidate, never promoted, equal bits, exact resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dvi.config import DviConfig
from dvi.objectives import LossReport
from dvi.types import Trace
from tests.trainers.conftest import WorldMaker
from tests.trainers.world import BASE, World
from trainers.build import Ground
from trainers.inline import TrainResult, train_on
from trainers.reports import loss_values


class Interrupted(Exception):
    """Ctrl-C at a step."""


def run_config(world: World, *, resume: bool = False, max_steps: int = 24) -> DviConfig:
    config = world.config
    trainer = replace(config.trainer, max_steps=max_steps)
    return replace(config, trainer=trainer, run=replace(config.run, resume=resume))


def train(
    world: World, run: str, *, resume: bool = False, stop_at: int | None = None
) -> tuple[TrainResult, list[tuple[int, dict[str, float]]]]:
    losses: list[tuple[int, dict[str, float]]] = []

    def progress(step: int, report: LossReport) -> None:
        losses.append((step, loss_values(report)))
        if step == stop_at:
            raise Interrupted

    folder = world.folder / "runs" / run / "trainer"
    ground = Ground(world.target, BASE, world.store, world.registry, folder)
    return train_on(run_config(world, resume=resume), ground, progress), losses


def tensors(world: World, version: int) -> dict[str, torch.Tensor]:
    return dict(world.registry.read(version).tensors)


def test_a_run_raises_held_out_acceptance_and_promotes_nothing(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    result, losses = train(world, "one")
    assert [step for step, _ in losses] == list(range(1, 25))
    assert result.acceptance_after > result.acceptance_before + 0.1
    assert (result.train_rows, result.holdout_rows) == (20, 2)  # 22 rows, every tenth held out
    assert [m.version for m in world.registry.versions()] == [result.version]
    assert world.registry.current() == 0
    manifest = world.registry.manifest(result.version)
    assert (manifest.checkpoint_step, manifest.rows_trained) == (24, 20)
    assert manifest.metrics["holdout_agreement"] == result.acceptance_after


def test_held_out_rows_are_never_trained_on(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("world", traces)
    drawn: set[int] = set()
    load = world.store.load

    def watched(keys):
        rows = load(keys)
        if len(keys) == world.config.trainer.batch_size:  # the two held-out rows come by themselves
            drawn.update(row.key.seq for row in rows)
        return rows

    monkeypatch.setattr(world.store, "load", watched)
    train(world, "one")
    assert drawn == set(range(1, 23)) - {10, 20}


def test_equal_seeds_give_equal_bits_and_another_seed_does_not(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    one, other, third = (world_of(name, traces) for name in ("one", "other", "third"))
    third.config.run.seed = 5
    (first, losses), (second, again), (_, different) = (
        train(w, "run") for w in (one, other, third)
    )
    assert losses == again
    assert losses != different
    ours, theirs = tensors(one, first.version), tensors(other, second.version)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_an_interrupted_run_resumes_exactly(world_of: WorldMaker, traces: list[Trace]) -> None:
    whole, world = world_of("whole", traces), world_of("world", traces)
    expected, losses = train(whole, "run")
    with pytest.raises(Interrupted):
        train(world, "run", stop_at=11)
    world.store.append("w", [replace(t, request_id=f"late-{t.request_id}") for t in traces[:5]])
    result, rest = train(world, "run", resume=True)
    assert rest == losses[-len(rest) :]
    assert 13 <= len(rest) <= 15  # from the last checkpoint, at most two steps back
    assert replace(result, version=0) == replace(expected, version=0)
    ours, theirs = tensors(whole, expected.version), tensors(world, result.version)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_finished_run_that_is_resumed_publishes_nothing_more(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    result, _ = train(world, "run")
    again, losses = train(world, "run", resume=True)
    assert again == result
    assert losses == []
    assert len(world.registry.versions()) == 1


def test_a_kill_after_publishing_publishes_nothing_more(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("world", traces)
    publish = world.registry.publish

    def dying(*arguments):
        publish(*arguments)
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(world.registry, "publish", dying)
        with pytest.raises(Interrupted):
            train(world, "run")
    result, _ = train(world, "run", resume=True)
    assert [m.version for m in world.registry.versions()] == [result.version]
    assert result.holdout_rows == 2


def test_a_run_folder_is_not_taken_over_without_resume(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces[:4])
    train(world, "run")
    with pytest.raises(ValueError, match=r"run\.resume=true"):
        train(world, "run")


def test_too_few_traces_are_a_clear_error(world_of: WorldMaker, traces: list[Trace]) -> None:
    with pytest.raises(ValueError, match="at least 2"):
        train(world_of("world", traces[:1]), "run")
