"""Speculative sampling of one position: its law by enumeration, its draws by counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from dvi.acceptance import rejection_acceptance
from dvi.sampling import ChoicePoint, Purpose
from dvi.sampling.choice import choose_row
from dvi.sampling.rejection import (
    acceptance,
    choose_or_accept,
    distribution,
    one_hot,
    residual,
)
from dvi.types import SamplingParams

VOCAB = 9
FALSE_ALARM = 1e-6  # chance that a right sampler fails one chi-square test; seeds are fixed

FIELDS = [
    {},
    {"temperature": 0.4},
    {"temperature": 3.0, "top_k": 4},
    {"temperature": 2.0, "top_p": 0.7},
    {"temperature": 1.5, "min_p": 0.3},
    {"temperature": 2.5, "top_k": 7, "top_p": 0.9, "min_p": 0.05},
]


def params_of(fields: dict[str, float], seed: int = 0) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1, "seed": seed, **fields})


def random_rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft logits [V] of one position; some ids are masked in one of them."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(scale=2.0, size=(2, VOCAB))
    if seed % 3 == 1:
        rows[0, rng.integers(VOCAB)] = -np.inf
    if seed % 3 == 2:
        rows[1, rng.permutation(VOCAB)[:3]] = -np.inf
    return rows[0], rows[1]


def law_of_one_position(target: np.ndarray, draft: np.ndarray) -> np.ndarray:
    """[V] distribution of the token that comes out, by enumerating what may be proposed."""
    accepted = acceptance(target, draft)
    left = residual(target, draft)
    law = np.zeros(VOCAB)
    for proposed in range(VOCAB):
        law[proposed] += draft[proposed] * accepted[proposed]
        law += draft[proposed] * (1 - accepted[proposed]) * left
    return law


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_the_token_follows_the_target_whatever_the_draft(fields, seed):
    params = params_of(fields)
    target, draft = (distribution(row, params) for row in random_rows(seed))
    assert target.sum() == pytest.approx(1, abs=1e-12)
    # 1e-12: float64 sums of nine terms of order one
    assert law_of_one_position(target, draft) == pytest.approx(target, abs=1e-12)
    accepted = float((draft * acceptance(target, draft)).sum())
    expected = float(rejection_acceptance(torch.from_numpy(target), torch.from_numpy(draft)))
    assert accepted == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("proposed", range(VOCAB))
def test_the_token_follows_the_target_when_a_memory_proposes(fields, proposed):
    target = distribution(random_rows(4)[0], params_of(fields))
    draft = one_hot(VOCAB, proposed)
    assert law_of_one_position(target, draft) == pytest.approx(target, abs=1e-12)
    assert acceptance(target, draft)[proposed] == target[proposed]
    assert residual(target, draft)[proposed] == 0 or target[proposed] == 1


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_distribution_is_that_of_temperature_then_top_k_then_top_p_then_min_p(fields):
    params = params_of(fields)
    row = random_rows(7)[0]
    z = row / params.temperature
    order = np.argsort(-z)
    if params.top_k:
        z[order[params.top_k :]] = -np.inf
    odds = np.exp(z - z.max())
    before = np.cumsum((odds / odds.sum())[order]) - (odds / odds.sum())[order]
    odds[order[before >= params.top_p]] = 0
    odds[odds < params.min_p * odds.max()] = 0
    assert distribution(row, params) == pytest.approx(odds / odds.sum(), abs=1e-12)


def test_greedy_takes_the_targets_arg_max_whatever_is_proposed():
    row, draft_row = random_rows(0)
    point = ChoicePoint(params_of({"temperature": 0.0}), 3)
    for proposed in range(VOCAB):
        for draft in (None, draft_row):
            assert choose_or_accept(row, point, proposed, draft) == row.argmax()


def test_equal_distributions_always_accept():
    row = random_rows(0)[0]
    for seed in range(200):
        point = ChoicePoint(params_of({}, seed), 5)
        proposed = choose_row(row, point, Purpose.PROPOSAL)
        assert choose_or_accept(row, point, proposed, row) == proposed


def counted(draft: str, fields: dict[str, float], num: int) -> tuple[np.ndarray, float]:
    """[V] counts of the tokens of ``num`` seeds, and how often a proposal was accepted."""
    row, draft_row = random_rows(2)
    counts, kept = np.zeros(VOCAB), 0
    for seed in range(num):
        point = ChoicePoint(params_of(fields, seed), 11)
        if draft == "neural":
            proposed = choose_row(draft_row, point, Purpose.PROPOSAL)
            token = choose_or_accept(row, point, proposed, draft_row)
        else:
            proposed = int(row.argmax())
            token = choose_or_accept(row, point, proposed, None)
        counts[token] += 1
        kept += token == proposed
    return counts, kept / num


@pytest.mark.parametrize("fields", FIELDS[2:], ids=str)
@pytest.mark.parametrize("draft", ["neural", "memory"])
def test_drawn_tokens_follow_the_target_and_acceptance_its_law(draft, fields):
    num = 3000
    params = params_of(fields)
    target, other = (distribution(row, params) for row in random_rows(2))
    counts, rate = counted(draft, fields, num)
    assert counts[target == 0].sum() == 0
    expected = target[target > 0] * num
    statistic = ((counts[target > 0] - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(FALSE_ALARM, expected.size - 1)
    alpha = np.minimum(target, other).sum() if draft == "neural" else target.max()
    # five standard deviations of a share of ``num`` independent draws
    assert abs(rate - alpha) <= 5 * np.sqrt(alpha * (1 - alpha) / num)


def test_the_residual_is_drawn_with_noise_that_the_proposal_has_not_seen():
    """With the proposal's own noise the id that nearly won the proposal would be too rare.

    p = (.1, .45, .45) and q = (.8, .19, .01): id 0 is rejected in 7 of 8 proposals, and what is
    left is .26 of id 1 to .44 of id 2.
    """
    row, draft_row = np.log([0.1, 0.45, 0.45]), np.log([0.8, 0.19, 0.01])
    num, drawn = 3000, np.zeros(3)
    for seed in range(num):
        point = ChoicePoint(params_of({}, seed), 11)
        proposed = choose_row(draft_row, point, Purpose.PROPOSAL)
        drawn[choose_or_accept(row, point, proposed, draft_row)] += 1
    expected = np.array([0.1, 0.45, 0.45]) * num
    statistic = ((drawn - expected) ** 2 / expected).sum()
    assert statistic < chi2.isf(FALSE_ALARM, 2)


def test_a_row_without_a_finite_logit_is_refused():
    row = np.full(VOCAB, -np.inf)
    with pytest.raises(ValueError, match="finite"):
        distribution(row, params_of({}))
