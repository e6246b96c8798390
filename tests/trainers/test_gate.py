"""The gate: its arithmetic, how often it errs, and the bad adapters that it keeps out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from dvi.drafting import lora
from dvi.modeling.target import TargetModel
from dvi.registry import Act
from dvi.types import Trace
from tests.trainers.conftest import WorldMaker
from tests.trainers.world import VOCAB, LiveDraft, greedy, prompt_of
from trainers.gate import (
    Decision,
    GateRule,
    Scores,
    accepted_length,
    confidence_of_better,
    decide,
    stricter,
    upper_tail,
)
from trainers.scoring import Score
from trainers.stream import replay_stream
from trainers.training import Publication, Training

RULE = GateRule(confidence=0.8, draft_len=4)


def score(hits: str, *, finite: bool = True) -> Score:
    """One trace; 1 is a hit."""
    bits = tuple(char == "1" for char in hits)
    return Score(len(bits), sum(bits), is_finite=finite, hits=(bits,))


def drawn(rng: np.random.Generator, rate: float, num: int) -> Score:
    return score("".join("1" if rng.random() < rate else "0" for _ in range(num)))


NOTHING = score("0" * 12)


def verdict(candidate: str, served: str, untrained: str = "0" * 12, rule: GateRule = RULE):
    return decide(Scores(score(candidate), score(served), score(untrained)), rule)


def test_the_confidence_is_the_exact_binomial_one() -> None:
    for heads, coins in ((0, 0), (3, 3), (5, 8), (20, 60), (900, 1700)):
        expected = binomtest(heads, coins, alternative="greater").pvalue if coins else 1.0
        assert upper_tail(heads, coins) == pytest.approx(expected, rel=1e-9)
    assert confidence_of_better(score("1110"), score("0001")) == pytest.approx(1 - 5 / 16)


def test_predicted_length_counts_the_accepted_prefix_and_one_token_a_round() -> None:
    assert accepted_length([[False] * 6], 4) == 1.0
    assert accepted_length([[True] * 10], 4) == 5.0
    # rounds: 11 0 | 1 0 | 0 -> 3, 2, 1 tokens
    assert accepted_length([[True, True, False, True, False, False]], 4) == 2.0
    # K = 1: 1 1 | 0 | 1 0 | 0; a round starts anew in every trace
    assert accepted_length([[True, True, False, True, False, False]], 1) == 6 / 4
    assert accepted_length([[True], [True]], 4) == 1.0
    assert accepted_length([], 4) == 1.0


def test_a_candidate_is_promoted_only_where_it_is_better_with_confidence() -> None:
    assert verdict("111000000000", "000000000000") is Decision.PROMOTED  # 1 - 1/8 is sure enough
    assert verdict("110000000000", "000000000000") is Decision.HELD  # 1 - 1/4 is not
    assert verdict("111000000000", "111000000000") is Decision.HELD
    assert verdict("000000000000", "111000000000") is Decision.HELD
    sure = GateRule(confidence=0.99, draft_len=4)
    assert verdict("111111000000", "0" * 12, rule=sure) is Decision.HELD
    assert verdict("111111100000", "0" * 12, rule=sure) is Decision.PROMOTED


def test_a_candidate_worse_than_no_training_is_held_though_it_beats_what_serves() -> None:
    assert verdict("111000000000", "000000000000", "111111000000") is Decision.HELD


def test_more_hits_that_make_no_round_longer_do_not_promote() -> None:
    # K = 1: the second hit of each pair is the target's own token. 9 rounds against 8.
    served, candidate = "101010100000", "111111000000"
    assert accepted_length([[c == "1" for c in candidate]], 1) == 12 / 9
    assert accepted_length([[c == "1" for c in served]], 1) == 12 / 8
    assert verdict(candidate, served, rule=GateRule(0.1, draft_len=1)) is Decision.HELD
    assert verdict(candidate, served, rule=GateRule(0.1, draft_len=4)) is Decision.PROMOTED


def test_what_is_not_finite_is_refused_and_never_defended() -> None:
    bad = score("1" * 12, finite=False)
    assert decide(Scores(bad, NOTHING, NOTHING), RULE) is Decision.REFUSED
    assert decide(Scores(bad, NOTHING, NOTHING), GateRule(0.0, 4)) is Decision.REFUSED
    assert decide(Scores(NOTHING, bad, NOTHING), RULE) is Decision.PROMOTED


def test_confidence_zero_promotes_everything_that_is_finite() -> None:
    assert verdict("0" * 12, "1" * 12, rule=GateRule(0.0, 4)) is Decision.PROMOTED


def test_each_recent_rollback_halves_the_doubt() -> None:
    doubts = [1 - stricter(RULE, n).confidence for n in range(4)]
    assert doubts == pytest.approx([0.2, 0.1, 0.05, 0.025])
    assert stricter(GateRule(0.0, 4), 3).confidence == 0.0


def promoted_share(candidate: float, served: float, num: int, rounds: int = 300) -> float:
    rng = np.random.default_rng(5)
    decisions = [
        decide(Scores(drawn(rng, candidate, num), drawn(rng, served, num), score("0" * num)), RULE)
        for _ in range(rounds)
    ]
    return decisions.count(Decision.PROMOTED) / rounds


def test_equal_drafts_are_exchanged_no_more_often_than_the_rule_says() -> None:
    assert promoted_share(0.5, 0.5, 200) <= 0.2 + 3 * (0.2 * 0.8 / 300) ** 0.5


def test_a_draft_worse_by_three_points_is_hardly_ever_promoted() -> None:
    # 400 independent positions: the difference has a standard error of .035, the rule asks for
    # .03 above zero, which is 1.7 errors from -.03
    assert promoted_share(0.47, 0.50, 400) < 0.09


def test_eight_short_answers_show_what_a_first_domain_teaches() -> None:
    """Not stalled: .05 against 0 as after the first ten requests, and .3 against .15."""
    assert promoted_share(0.05, 0.0, 8 * 20) > 0.9
    assert promoted_share(0.30, 0.15, 8 * 20) > 0.9


@pytest.fixture
def trained(world_of: WorldMaker, traces: list[Trace]) -> Training:
    """A training whose registry serves a good version."""
    training = world_of("world", traces).training()
    list(replay_stream(training))
    assert training.parts.versions.served()[0] > 0
    return training


@pytest.fixture(scope="module")
def unseen(target: TargetModel) -> list[Trace]:
    """Answers to the same prompts that no step has seen."""
    live = LiveDraft(target)
    return [live.decode(f"new{i}", prompt_of(i), greedy(20)) for i in range(6)]


def gate_on(
    training: Training, values: dict[str, torch.Tensor], unseen: list[Trace]
) -> Publication:
    """What the gate says about these values, all else as it is."""
    draft = training.parts.learner.draft
    lora.load_into(draft.module, draft.layout, values)
    training.parts.intake.holdout.clear()
    training.parts.intake.max_holdout = len(unseen)
    number = sum(training.parts.intake.cursor.values())  # a store takes an id once
    rows = [replace(trace, request_id=f"{trace.request_id}-{number}") for trace in unseen]
    training.parts.rows.store.append("gate", rows)
    training.take_new(64)
    publication = training.publish()
    assert publication is not None
    assert publication.verdict.num_traces == len(unseen)
    return publication


def own_values(training: Training) -> dict[str, torch.Tensor]:
    tensors = lora.adapter_tensors(training.parts.learner.draft.module)
    return {name: tensor.clone() for name, tensor in tensors.items()}


def random_values(training: Training, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: 3 * torch.randn(tensor.shape, generator=generator) * (tensor.std() + 0.02)
        for name, tensor in own_values(training).items()
    }


def poisoned_values(training: Training, unseen: list[Trace]) -> dict[str, torch.Tensor]:
    """Trained on rows whose answers were exchanged for noise."""
    rng = np.random.default_rng(0)
    bad = []
    for trace in unseen:
        shape = trace.top_ids.shape
        ids = rng.random((shape[0], VOCAB)).argsort(axis=1)[:, : shape[1]].astype(np.int32)
        bad.append(replace(trace, top_ids=ids, output_ids=tuple(int(row[0]) for row in ids)))
    return after_steps(training, bad, 30)


def overfitted_values(training: Training, unseen: list[Trace]) -> dict[str, torch.Tensor]:
    """Trained on one row again and again, from nothing."""
    training.parts.learner.draft.start_from(None)
    one = LiveDraft(training.parts.learner.inputs.target).decode("one", prompt_of(99), greedy(8))
    return after_steps(training, [one], 60)


def after_steps(training: Training, rows: list[Trace], steps: int) -> dict[str, torch.Tensor]:
    for _ in range(steps):
        training.parts.learner.train_step(rows, version=0)
    return own_values(training)


def stale_values(training: Training, unseen: list[Trace]) -> dict[str, torch.Tensor]:
    """The first version that was ever published."""
    first = training.parts.versions.registry.versions()[0].version
    return dict(training.parts.versions.registry.read(first).tensors)


BAD: dict[str, Callable[[Training, list[Trace]], dict[str, torch.Tensor]]] = {
    "poisoned": poisoned_values,
    "overfitted": overfitted_values,
    "stale": stale_values,
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_adapter_is_held(trained: Training, unseen: list[Trace], kind: str) -> None:
    live = trained.parts.versions.served()[0]
    publication = gate_on(trained, BAD[kind](trained, unseen), unseen)
    assert publication.verdict.decision is Decision.HELD
    assert trained.parts.versions.served()[0] == live


def test_none_of_twenty_random_adapters_is_promoted(trained: Training, unseen: list[Trace]) -> None:
    live = trained.parts.versions.served()[0]
    for seed in range(20):
        publication = gate_on(trained, random_values(trained, seed), unseen)
        assert publication.verdict.decision is not Decision.PROMOTED
    assert trained.parts.versions.served()[0] == live


def test_a_version_in_service_worse_than_no_training_is_taken_out(
    trained: Training, unseen: list[Trace]
) -> None:
    registry, good = trained.parts.versions.registry, trained.parts.versions.served()[0]
    values = random_values(trained, 0)
    planted = gate_on(trained, values, unseen).version
    assert planted is not None
    registry.promote(planted, "planted")
    publication = gate_on(trained, values, unseen)
    assert publication.verdict.is_served_worthless
    assert registry.current() == good
    event = next(e for e in reversed(registry.history()) if e.act is not Act.PUBLISH)
    assert (event.act, event.replaced) == (Act.ROLLBACK, planted)
    assert "worse than the untrained draft" in event.reason
    assert trained.parts.versions.recent_rollbacks() == 1


def test_the_manifest_holds_what_the_decision_rests_on(trained: Training) -> None:
    for manifest in trained.parts.versions.registry.versions():
        metrics = manifest.metrics
        is_sure = metrics["gate_confidence"] >= metrics["gate_confidence_wanted"] == 0.8
        is_longer = metrics["candidate_accepted_length"] >= metrics["served_accepted_length"] >= 1
        assert metrics["gate_promoted"] <= (is_sure and is_longer)
        assert metrics["gate_draft_len"] == 4
