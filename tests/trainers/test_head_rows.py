"""The trainer's side of a trimmed head: which columns a step has, and how the list follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dvi.config import ObjectiveConfig
from dvi.drafting.vocab import ranked_vocab
from dvi.modeling.target import TargetModel
from dvi.objectives import total_loss
from dvi.types import Trace
from tests.trainers.conftest import WorldMaker
from tests.trainers.test_learner import learner_on
from tests.trainers.world import DRAFTER, VOCAB, LiveDraft, greedy, prompt_of
from trainers.batch import make_batch
from trainers.head_rows import HALF_LIFE_TRACES, TokenCounts
from trainers.stream import replay_stream
from trainers.subset import step_columns

CPU = torch.device("cpu")


def test_columns_hold_the_list_and_every_id_that_the_step_names(traces: list[Trace]) -> None:
    batches = [make_batch(traces[:2], 64, 0, CPU), make_batch(traces[2:4], 64, 0, CPU)]
    columns = step_columns(batches, ranked_vocab(torch.zeros(VOCAB), 5, 0))
    assert (columns.ids.diff() > 0).all()
    named = set(range(5))
    for batch in batches:
        teacher, judged = columns.teacher(batch), columns.judged(batch)
        for ours, theirs in (
            (teacher.top_ids, batch.teacher.top_ids),
            (teacher.committed, batch.teacher.committed),
            (judged.token, batch.judged.token),
        ):
            assert torch.equal(columns.ids[ours], theirs)
            named |= set(theirs.flatten().tolist())
    assert set(columns.ids.tolist()) == named


def test_a_list_of_every_id_gives_the_loss_of_the_whole_head(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    batch = make_batch(traces[:4], 64, 0, CPU)
    hidden = learner.inputs.compute(batch)

    def loss_and_gradient(rows, teacher, judged):
        logits = learner.draft.logits(hidden, batch, rows)
        report = total_loss(logits, teacher, judged, ObjectiveConfig(), step=0, baseline=0.0)
        learner.optimizer.clear()
        report.loss.backward()
        grads = [p.grad.clone() for p in learner.optimizer.params.values() if p.grad is not None]
        return float(report.loss.detach()), grads

    every = step_columns([batch], ranked_vocab(torch.zeros(VOCAB), VOCAB, 0))
    one, ours = loss_and_gradient(every.ids, every.teacher(batch), every.judged(batch))
    other, theirs = loss_and_gradient(None, batch.teacher, batch.judged)
    assert one == pytest.approx(other, rel=1e-6)  # float32, another order of sums
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-7)


def test_rows_that_no_column_names_get_no_gradient(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    batch = make_batch(traces[:1], 64, 0, CPU)
    columns = step_columns([batch], ranked_vocab(torch.zeros(VOCAB), 1, 0))
    logits = learner.draft.logits(learner.inputs.compute(batch), batch, columns.ids)
    logits.square().sum().backward()
    params = learner.optimizer.params
    (factor_b,) = [p for name, p in params.items() if "draft_head.lora_B" in name]
    assert factor_b.grad is not None
    touched = factor_b.grad.abs().sum(-1) > 0
    assert touched.nonzero()[:, 0].tolist() == columns.ids.tolist()
    assert len(columns.ids) < VOCAB


@pytest.mark.parametrize("size", [None, 20])
def test_logged_log_probabilities_are_those_of_the_list_in_service(
    tmp_path, target: TargetModel, size: int | None
) -> None:
    config = replace(DRAFTER, draft_vocab_size=size)
    live = LiveDraft(target, config=config)
    traces = [live.decode(f"r{i}", prompt_of(i), greedy(12)) for i in range(4)]
    learner = learner_on(target, tmp_path, drafter=config)
    score = learner.score(traces, version=0)
    assert score.num_logged == sum(len(r.proposed_ids) for t in traces for r in t.rounds)
    assert score.logprob_gap is not None
    assert score.logprob_gap < 1e-5  # both float32: rounding only
    ids = {i for t in traces for r in t.rounds for i in r.proposed_ids}
    assert not ids or max(ids) < (size or VOCAB)


def test_the_list_follows_the_traffic_and_travels_with_the_version(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    first = training.parts.learner.draft.vocab
    assert first is not None
    assert (first.version, first.ids.tolist()) == (0, list(range(36)))
    list(replay_stream(training))
    training.choose_rows()
    newest = world.registry.read(training.publish_version({}, is_promoted=True))
    assert newest.draft_vocab is not None
    assert int(newest.draft_vocab["version"]) >= 1
    expected = ranked_vocab(training.parts.rows.tokens.counts, 36, 0)
    used = {i for t in traces for i in (*t.prompt_ids, *t.output_ids)}
    assert len(used) > 36  # else every used id is listed whatever the counts say
    assert set(newest.draft_vocab["ranked"].tolist()) == set(expected.ids.tolist())


def test_counts_of_old_traffic_fade(traces: list[Trace]) -> None:
    counts = TokenCounts(VOCAB)
    old = replace(traces[0], prompt_ids=(1,), output_ids=(1,))
    new = replace(traces[0], prompt_ids=(2,), output_ids=(2,))
    counts.add(old)
    for _ in range(HALF_LIFE_TRACES):
        counts.add(new)
    assert float(counts.counts[1]) == pytest.approx(1.0)  # two tokens, one half-life
    assert float(counts.counts[2]) > HALF_LIFE_TRACES
