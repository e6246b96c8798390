"""A draft model learns from traces as the others do: it reads their ids, and no h_k."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dvi.config import DviConfig
from dvi.drafting import model as model_kind
from dvi.modeling.target import TargetModel
from dvi.types import Trace
from tests.drafting.pairs import small_model
from tests.trainers.world import (
    BASE,
    DRAFTER,
    NUM_PROMPTS,
    LiveDraft,
    World,
    greedy,
    make_world,
    prompt_of,
    tiny_target,
)
from trainers.batch import make_batch
from trainers.build import Ground
from trainers.inline import TrainResult, train_on
from trainers.shallow import EmbeddedIds, ShallowStates

CONFIG = replace(DRAFTER, kind="model", path="in memory", draft_vocab_size=None)


@pytest.fixture(autouse=True)
def _model_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same small model wherever one is opened."""

    def load(path: Path, target: TargetModel, max_context_len: int) -> TargetModel:
        return small_model(target, vocab=56)

    monkeypatch.setattr(model_kind, "draft_folder", lambda config: Path(config.path))
    monkeypatch.setattr(model_kind, "load_draft_model", load)


def traces_of(live: LiveDraft, count: int) -> list[Trace]:
    """Few prompts that come again, every third answer sampled."""
    traces = []
    for index in range(count):
        params = greedy(12)
        if index % 3 == 2:
            params = replace(params, temperature=0.8, seed=index)
        traces.append(live.decode(f"r{index}", prompt_of(index % NUM_PROMPTS), params))
    return traces


def alpha(traces: list[Trace]) -> float:
    rounds = [one for trace in traces for one in trace.rounds]
    judged = sum(len(one.proposed_ids) for one in rounds)
    return sum(one.num_accepted for one in rounds if one.proposed_ids) / judged


def train(world: World, run: str, max_steps: int = 16, **trainer: object) -> TrainResult:
    config: DviConfig = replace(
        world.config, trainer=replace(world.config.trainer, max_steps=max_steps, **trainer)
    )
    folder = world.folder / "runs" / run
    ground = Ground(world.target, BASE, world.store, world.registry, folder)
    return train_on(config, ground, lambda _: None)


def test_learning_raises_live_acceptance_and_a_run_that_cannot_learn_does_not(
    tmp_path: Path,
) -> None:
    target = tiny_target()
    live = LiveDraft(target, config=CONFIG)
    before = traces_of(live, 22)
    world = make_world(tmp_path, before, target=target)
    world.config.drafter = CONFIG
    learned, control = train(world, "learned", 30), train(world, "control", 2, learning_rate=0.0)
    assert control.acceptance_after == control.acceptance_before == learned.acceptance_before
    assert learned.acceptance_after > learned.acceptance_before + 0.2
    live_alpha = {0: alpha(before[:9])}
    for result in (learned, control):
        own = LiveDraft(target, config=CONFIG)
        own.drafter.load(own.drafter.prepare(world.registry.read(result.version)))
        after = traces_of(own, 9)
        assert [one.output_ids for one in after] == [one.output_ids for one in before[:9]]
        live_alpha[result.version] = alpha(after)
    assert live_alpha[control.version] == live_alpha[0]
    assert live_alpha[learned.version] > live_alpha[0] + 0.2


def test_what_the_live_model_logged_is_what_the_trainer_computes(tmp_path: Path) -> None:
    target = tiny_target()
    world = make_world(tmp_path, traces_of(LiveDraft(target, config=CONFIG), 9), target=target)
    world.config.drafter = CONFIG
    result = train(world, "run", 5)
    live = LiveDraft(target, config=CONFIG)
    live.drafter.load(live.drafter.prepare(world.registry.read(result.version)))
    learner = world.training().parts.learner
    for version, traces in ((result.version, traces_of(live, 3)), (0, traces_of_untrained(target))):
        adapter = world.registry.read(version) if version else None
        with learner.draft.showing(adapter):
            score = learner.score(traces, version)
        assert score.num_logged > 10
        # float32, merged factors on one side and added ones on the other, logits of some ten
        assert score.logprob_gap is not None
        assert score.logprob_gap < 1e-5


def traces_of_untrained(target: TargetModel) -> list[Trace]:
    return traces_of(LiveDraft(target, config=CONFIG), 3)


def test_the_target_is_not_run_for_it(tmp_path: Path) -> None:
    target = tiny_target()
    world = make_world(tmp_path, traces_of(LiveDraft(target, config=CONFIG), 3), target=target)
    assert isinstance(world.fresh().parts.learner.inputs, ShallowStates)
    world.config.drafter = CONFIG
    inputs = world.fresh().parts.learner.inputs
    assert isinstance(inputs, EmbeddedIds)
    traces = [row.trace for row in world.store.read({}, 3)]
    batch = make_batch(traces, 512, 0, torch.device("cpu"))
    embedded = inputs.compute(batch)
    assert embedded.shape == (3, int(batch.lengths.max()), 16)
    for trace, window, row in zip(traces, batch.windows, embedded, strict=True):
        assert window.ids == (*trace.prompt_ids, *trace.output_ids[:-1])
        assert torch.equal(row[: len(window.ids)], inputs.embedding[torch.tensor(window.ids)])


@pytest.mark.slow
def test_an_interrupted_run_resumes_exactly(tmp_path: Path) -> None:
    target = tiny_target()
    traces = traces_of(LiveDraft(target, config=CONFIG), 12)
    values = []
    for name, stops in (("whole", ()), ("cut", (9,))):
        world = make_world(tmp_path / name, traces, target=target)
        world.config.drafter = CONFIG
        for stop in stops:
            with pytest.raises(KeyboardInterrupt):
                run_until(world, stop)
        world.config.run.resume = bool(stops)
        values.append(dict(world.registry.read(train(world, "run").version).tensors))
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])


def run_until(world: World, stop: int) -> None:
    def progress(report) -> None:
        if report.step == stop:
            raise KeyboardInterrupt

    config = replace(world.config, trainer=replace(world.config.trainer, max_steps=16))
    folder = world.folder / "runs" / "run"
    train_on(config, Ground(world.target, BASE, world.store, world.registry, folder), progress)
