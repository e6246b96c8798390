"""The acceptance rule and its laws, derived here a second time or measured by enumeration."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from dvi.acceptance import (
    accept_prefix,
    agreement,
    break_even_acceptance,
    coupled_acceptance,
    coupled_lower_bound,
    expected_tokens,
    goodput,
    rejection_acceptance,
    total_variation,
)
from dvi.sampling import ChoicePoint, choose
from dvi.types import SamplingParams

FALSE_ALARM = 1e-6


def test_accept_prefix_is_the_longest_equal_prefix():
    for draft_len in range(4):
        for proposed in itertools.product((0, 1), repeat=draft_len):
            for chosen in itertools.product((0, 1), repeat=draft_len + 1):
                longest = max(n for n in range(draft_len + 1) if proposed[:n] == chosen[:n])
                assert accept_prefix(proposed, chosen) == longest


def test_agreement_after_a_reject_does_not_count():
    assert accept_prefix([1, 9, 3], [1, 2, 3, 4]) == 1


def test_the_target_has_at_most_one_choice_more_than_was_proposed():
    with pytest.raises(AssertionError):
        accept_prefix([1, 2], [1, 2, 3, 4])
    assert accept_prefix([1, 2], [1, 2]) == 2  # a grammar may end the answer there


def distributions(num, size, seed):
    """Pairs from sharp to flat, with zeros in some."""
    generator = np.random.default_rng(seed)
    for index in range(num):
        scale = (0.3, 1.0, 3.0, 8.0)[index % 4]
        pair = np.exp(generator.normal(0, scale, (2, size)))
        if index % 3 == 0:
            pair[generator.integers(2), generator.integers(size)] = 0
        yield torch.tensor(pair / pair.sum(1, keepdims=True))


def test_coupled_acceptance_is_the_published_sum():
    for target, draft in distributions(200, 6, seed=0):
        expected = 0.0
        for x in range(6):
            if target[x] > 0 and draft[x] > 0:
                ratios = torch.maximum(target / target[x], draft / draft[x])
                expected += 1 / float(ratios.sum())
        assert float(coupled_acceptance(target, draft)) == pytest.approx(expected, abs=1e-12)


def test_coupled_acceptance_works_on_batches_and_large_vocabularies():
    logits = torch.randn(2, 3, 20_000, generator=torch.Generator().manual_seed(0)).double()
    target, draft = (logits * 3).softmax(-1)[0], (logits * 3).softmax(-1)[1]
    batch = coupled_acceptance(target, draft)
    alone = [float(coupled_acceptance(p, q)) for p, q in zip(target, draft, strict=True)]
    assert batch.tolist() == pytest.approx(alone, abs=1e-12)
    assert bool((batch >= coupled_lower_bound(target, draft)).all())


def test_equal_distributions_are_always_accepted_and_disjoint_ones_never():
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    q = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    for law in (coupled_acceptance, rejection_acceptance, coupled_lower_bound):
        assert float(law(p, p)) == pytest.approx(1.0, abs=1e-12)
        assert float(law(p, q)) == pytest.approx(0.0, abs=1e-12)


def test_coupled_acceptance_lies_between_its_lower_bound_and_rejection():
    for target, draft in distributions(300, 9, seed=1):
        coupled = float(coupled_acceptance(target, draft))
        assert coupled >= float(coupled_lower_bound(target, draft)) - 1e-12
        assert coupled <= float(rejection_acceptance(target, draft)) + 1e-12


def test_rejection_acceptance_is_one_minus_total_variation():
    for target, draft in distributions(50, 7, seed=2):
        expected = 1 - float(total_variation(target, draft))
        assert float(rejection_acceptance(target, draft)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", range(6))
@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_target_and_draft_agree_as_often_as_the_law_says(case, temperature):
    """Enumeration over seeds: both choose with the same noise."""
    target, draft = next(itertools.islice(distributions(6, 5, seed=3), case, None))
    num_seeds = 4000
    points = [
        ChoicePoint(SamplingParams(1, temperature=temperature, seed=seed), case)
        for seed in range(num_seeds)
    ]
    chosen = [
        choose((temperature * p.log()).expand(num_seeds, -1), points) for p in (target, draft)
    ]
    agreed = sum(a == b for a, b in zip(*chosen, strict=True))
    law = float(coupled_acceptance(target, draft))
    assert stats.binomtest(agreed, num_seeds, law).pvalue > FALSE_ALARM
    floor = float(coupled_lower_bound(target, draft))
    assert stats.binomtest(agreed, num_seeds, floor, alternative="less").pvalue > FALSE_ALARM


def test_agreement_is_the_share_of_equal_ids():
    assert agreement(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 0, 3, 0])) == 0.5
    assert agreement(torch.tensor([]), torch.tensor([])) == 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("draft_len", [0, 1, 4])
def test_expected_tokens_is_the_mean_of_the_round_length(alpha, draft_len):
    # accepted = n < K with probability alpha^n (1 - alpha), K with alpha^K; one more is committed
    mean = sum((n + 1) * alpha**n * (1 - alpha) for n in range(draft_len))
    mean += (draft_len + 1) * alpha**draft_len
    assert expected_tokens(alpha, draft_len) == pytest.approx(mean, abs=1e-12)


def test_at_break_even_a_round_is_as_fast_as_plain_decoding():
    for draft_len in (1, 2, 4, 8):
        alpha = break_even_acceptance(0.004, 0.048, 0.036, draft_len)
        assert 0 < alpha < 1
        assert goodput(alpha, draft_len, 0.004, 0.048) == pytest.approx(1 / 0.036, rel=1e-9)
        assert goodput(alpha + 0.01, draft_len, 0.004, 0.048) > 1 / 0.036


def test_break_even_of_a_hopeless_draft_is_out_of_reach():
    assert break_even_acceptance(1.0, 1.0, 0.1, 4) == math.inf
    assert break_even_acceptance(0.001, 0.05, 0.036, 0) == math.inf  # K = 0, but slower than plain


def test_break_even_of_a_free_round_is_zero():
    assert break_even_acceptance(0.0, 0.03, 0.03, 4) == 0.0


def test_a_draft_that_must_be_perfect_breaks_even_at_one():
    assert break_even_acceptance(0.0, 5.0, 1.0, 4) == pytest.approx(1.0, abs=1e-12)
