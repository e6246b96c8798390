"""The optimizer step: what it learns, what it leaves alone, what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dvi.config import ObjectiveConfig
from dvi.drafting import lora
from dvi.modeling.target import TargetModel
from dvi.types import Trace
from tests.drafting.rows import make_adapter, target_hash
from tests.trainers.world import DRAFTER, LiveDraft, greedy, prompt_of, tiny_config, tiny_target
from trainers.build import make_learner
from trainers.draft import make_draft
from trainers.learner import Learner


def learner_on(
    target: TargetModel, tmp_path, objective=None, drafter=DRAFTER, **trainer: object
) -> Learner:
    config = tiny_config(tmp_path, **trainer)
    config = replace(config, objective=objective or ObjectiveConfig(), drafter=drafter)
    return make_learner(config, target, make_draft(config.drafter, target, seed=0))


def values(learner: Learner) -> dict[str, torch.Tensor]:
    return learner.optimizer.tensors()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def test_acceptance_rises_far_above_a_control_that_does_not_learn(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    control = learner_on(target, tmp_path, learning_rate=0.0)
    for step in range(40):
        batch = [traces[(4 * step + i) % len(traces)] for i in range(4)]
        learner.train_step(batch, version=0)
        control.train_step(batch, version=0)
    before = learner_on(target, tmp_path).score(traces, 0)
    assert control.score(traces, 0) == before
    assert learner.score(traces, 0).agreement > before.agreement + 0.2


def test_warm_up_is_linear_and_then_constant(tmp_path, target: TargetModel) -> None:
    learner = learner_on(target, tmp_path, learning_rate=2e-3, warmup_steps=4)
    rates = [learner.optimizer.learning_rate(step) for step in range(6)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1.5e-3, 2e-3, 2e-3, 2e-3])


def test_a_step_leaves_the_target_alone(tmp_path, traces: list[Trace]) -> None:
    target = tiny_target()
    before = target_hash(target)
    learner = learner_on(target, tmp_path)
    for _ in range(3):
        learner.train_step(traces[:4], version=0)
    assert target_hash(target) == before
    assert all(not tensor.requires_grad for tensor in (target.embedding, target.head))


def test_a_non_finite_loss_changes_nothing_and_is_counted(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    learner.train_step(traces[:4], version=0)
    before = values(learner)
    bad = replace(traces[0], logsumexp=np.full_like(traces[0].logsumexp, np.nan))
    report = learner.train_step([bad, *traces[1:4]], version=0)
    assert report.is_dropped
    assert same(values(learner), before)
    assert (learner.num_steps, learner.num_dropped) == (1, 1)
    assert not learner.train_step(traces[:4], version=0).is_dropped


def test_a_non_finite_gradient_changes_nothing(
    tmp_path, target: TargetModel, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_on(target, tmp_path)
    learner.train_step(traces[:4], version=0)
    before = values(learner)
    param = next(iter(learner.optimizer.params.values()))
    handle = param.register_hook(lambda gradient: gradient * torch.inf)
    report = learner.train_step(traces[:4], version=0)
    handle.remove()
    assert report.is_dropped
    assert torch.isfinite(report.loss.loss)
    assert same(values(learner), before)


def test_a_batch_of_different_lengths_is_scored_as_its_traces_one_by_one(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    live = LiveDraft(target)
    mixed = [live.decode(f"m{n}", prompt_of(n, n), greedy(2 * n)) for n in (1, 7, 3)] + traces[:2]
    learner = learner_on(target, tmp_path)
    learner.train_step(traces[:4], version=0)
    together = learner.score(mixed, 0)
    alone = [learner.score([trace], 0) for trace in mixed]
    assert together.num_positions == sum(len(trace.output_ids) for trace in mixed)
    assert together.num_agreed == sum(score.num_agreed for score in alone)


def test_a_batch_cut_into_parts_has_the_gradient_of_the_whole(
    tmp_path, traces: list[Trace]
) -> None:
    target = tiny_target(torch.float64)
    objective = ObjectiveConfig(ce_weight=0.5)
    whole = learner_on(target, tmp_path, objective)
    parts = learner_on(target, tmp_path, objective)
    parts.max_positions = 20
    live = LiveDraft(target)
    batch = [live.decode(f"p{n}", prompt_of(n), greedy(n)) for n in (4, 12, 9, 15)]
    for _ in range(3):
        one = whole.train_step(batch, version=0)
        other = parts.train_step(batch, version=0)
        # Equal but for the order of summation in float64.
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-9)
        assert float(other.loss.loss) == pytest.approx(float(one.loss.loss), rel=1e-9)
        assert other.loss.kl == pytest.approx(one.loss.kl, rel=1e-9)
    assert other.loss.num_positions == one.loss.num_positions == 40


def test_recomputed_logits_reproduce_the_logged_log_probabilities(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    score = learner_on(target, tmp_path).score(traces, version=0)
    assert score.num_logged == sum(len(r.proposed_ids) for t in traces for r in t.rounds)
    assert score.logprob_gap is not None
    # Fast live forward against the trainer's padded one, both float32: rounding only.
    assert score.logprob_gap < 1e-5


def test_the_gap_is_large_when_trainer_and_live_draft_disagree(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    for _ in range(5):
        learner.train_step(traces[:4], version=0)
    gap = learner.score(traces, version=0).logprob_gap
    assert gap is not None
    assert gap > 1e-2
    assert learner.score(traces, version=1).logprob_gap is None  # nothing was drafted by it


def test_the_score_is_the_acceptance_rate_of_the_live_draft(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    judged = sum(len(r.proposed_ids) for t in traces for r in t.rounds)
    accepted = sum(r.num_accepted for t in traces for r in t.rounds)
    # Judged proposals are a part of all positions, drawn by the draft's own luck: 360 positions at
    # rate a have a standard error of about .025.
    assert learner.score(traces, 0).agreement == pytest.approx(accepted / judged, abs=0.08)


def test_a_sampled_request_is_scored_by_its_own_choice_rule(tmp_path, target: TargetModel) -> None:
    live = LiveDraft(target, draft_len=1)
    params = replace(greedy(40), temperature=1.0, seed=11)
    trace = live.decode("s", prompt_of(1), params)
    # With one proposal a round, every proposal is judged; the rounds it leads are its positions.
    learner = learner_on(target, tmp_path)
    rows, row = [], 0
    for cycle in trace.rounds:
        if cycle.proposed_ids:
            rows.append((row, cycle.proposed_ids[0]))
        row += cycle.num_accepted + 1
    agreed = sum(token == trace.output_ids[row] for row, token in rows)
    score = learner.score([trace], 0)
    assert agreed <= score.num_agreed <= agreed + score.num_positions - len(rows)
    as_greedy = learner.score([replace(trace, sampling=greedy(40))], 0)
    assert as_greedy.num_agreed != score.num_agreed


def test_showing_another_version_gives_the_own_values_back_bit_for_bit(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    learner.train_step(traces[:4], version=0)
    other = lora.adapter_tensors(learner.draft.module)
    adapter = make_adapter(learner.draft.layout, other)
    for _ in range(3):
        learner.train_step(traces[:4], version=0)
    before, own = values(learner), learner.score(traces, 0)
    with learner.draft.showing(adapter):
        shown = lora.adapter_tensors(learner.draft.module)
    assert same(shown, other)
    with learner.draft.showing(None):
        untrained = learner.score(traces, 0)
    assert untrained == learner_on(target, tmp_path).score(traces, 0)
    assert same(values(learner), before)
    assert learner.score(traces, 0) == own


def test_the_reward_baseline_follows_judged_proposals_only(
    tmp_path, target: TargetModel, traces: list[Trace]
) -> None:
    learner = learner_on(target, tmp_path)
    unjudged = [replace(trace, rounds=()) for trace in traces[:4]]
    learner.train_step(unjudged, version=0)
    assert learner.baseline == 0.0
    report = learner.train_step(traces[:4], version=0)
    assert report.loss.num_judged > 0
    assert learner.baseline == pytest.approx(0.1 * report.loss.reward)
