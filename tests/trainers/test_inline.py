"""`dvi train data=replay`: one candidate, never promoted, equal bits, exact resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dvi.config import DviConfig
from dvi.types import Trace
from tests.trainers.conftest import WorldMaker
from tests.trainers.world import BASE, World
from trainers.build import Ground
from trainers.inline import TrainResult, train_on
from trainers.ranks import ONE, Ranks, open_ranks
from trainers.reports import StepReport, loss_values
from trainers.shallow import ShallowStates


class Interrupted(Exception):
    """Ctrl-C at a step."""


def run_config(world: World, *, resume: bool = False, max_steps: int = 24) -> DviConfig:
    config = world.config
    trainer = replace(config.trainer, max_steps=max_steps)
    return replace(config, trainer=trainer, run=replace(config.run, resume=resume))


def train(
    world: World,
    run: str,
    *,
    resume: bool = False,
    stop_at: int | None = None,
    max_steps: int = 24,
    ranks: Ranks = ONE,
) -> tuple[TrainResult, list[tuple[int, dict[str, float]]]]:
    losses: list[tuple[int, dict[str, float]]] = []

    def progress(report: StepReport) -> None:
        losses.append((report.step, loss_values(report.loss)))
        if report.step == stop_at:
            raise Interrupted

    folder = world.folder / "runs" / run / "trainer"
    ground = Ground(world.target, BASE, world.store, world.registry, folder, ranks)
    return train_on(run_config(world, resume=resume, max_steps=max_steps), ground, progress), losses


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


def test_three_stops_and_resumes_equal_one_uninterrupted_run_bit_for_bit(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    settings = {"gradient_accumulation_steps": 2, "batch_size": 3}
    whole, world = world_of("whole", traces, **settings), world_of("world", traces, **settings)
    expected, losses = train(whole, "run")
    for stop_at in (5, 11, 18):
        with pytest.raises(Interrupted):
            train(world, "run", resume=stop_at > 5, stop_at=stop_at)
    result, rest = train(world, "run", resume=True)
    assert rest == losses[-len(rest) :]
    assert result == expected
    for name, value in tensors(whole, expected.version).items():
        assert torch.equal(value, tensors(world, result.version)[name])


def test_accumulated_batches_make_the_step_of_one_large_batch(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    compute = ShallowStates.compute

    def watched(self, batch):
        sizes.append(len(batch.traces))
        return compute(self, batch)

    large = world_of("large", traces, batch_size=6)
    small = world_of("small", traces, batch_size=2, gradient_accumulation_steps=3)
    expected, losses = train(large, "run", max_steps=6)
    monkeypatch.setattr(ShallowStates, "compute", watched)
    result, again = train(small, "run", max_steps=6)
    assert sizes[:18] == [2] * 18
    for (_, one), (_, other) in zip(losses, again, strict=True):
        # the same positions, summed in another order in float32
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
    ours, theirs = tensors(large, expected.version), tensors(small, result.version)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-4, rtol=1e-3)


def test_a_forward_in_bfloat16_trains_values_in_float32_to_the_same_end(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    full, mixed = world_of("full", traces), world_of("mixed", traces)
    (expected, losses), (result, again) = (
        train(full, "run"),
        train(mixed, "run", ranks=open_ranks(bf16(mixed), {})),
    )
    assert [step for step, _ in again] == [step for step, _ in losses]
    assert again != losses  # 8 bits of mantissa are seen
    # bfloat16 rounds a logit of size 10 by 0.04: losses of about 3 agree within a few hundredths
    for (_, one), (_, other) in zip(losses, again, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], abs=0.15)
    assert {value.dtype for value in tensors(mixed, result.version).values()} == {torch.float32}
    assert result.acceptance_after > result.acceptance_before + 0.1
    assert result.acceptance_before == expected.acceptance_before  # judged in full precision


def bf16(world: World) -> DviConfig:
    return replace(
        world.config,
        trainer=replace(world.config.trainer, mixed_precision="bf16"),
        model=replace(world.config.model, device="cpu"),
    )


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
