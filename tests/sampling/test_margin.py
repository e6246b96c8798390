"""Distances to another choice: what would have to change for it to win."""

import math

import numpy as np
import pytest
import torch

from dvi.sampling import ChoicePoint, choice_margin, choose
from dvi.sampling.margin import border_distance
from dvi.types import SamplingParams
from tests.sampling.reference import kept_ids, noise_of


def point(position=3, **fields):
    return ChoicePoint(SamplingParams(max_tokens=1, **fields), position)


def test_greedy_margin_is_the_gap_of_the_logits():
    row = torch.tensor([1.0, 4.0, 3.5])
    assert choice_margin(row, point(temperature=0.0), 2) == pytest.approx(0.5)
    assert choice_margin(row, point(temperature=0.0), 0) == pytest.approx(3.0)


def test_the_choice_itself_has_margin_zero():
    row = torch.randn(50, generator=torch.Generator().manual_seed(0))
    for fields in ({"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 5, "top_p": 0.8}):
        (chosen,) = choose(row[None], [point(**fields)])
        assert choice_margin(row, point(**fields), chosen) == 0.0


def test_sampled_margin_is_the_gap_of_noisy_scores():
    row = torch.randn(50, generator=torch.Generator().manual_seed(1))
    at = point(temperature=0.7, seed=3)
    scores = row.double().numpy() + 0.7 * noise_of(at, 50)
    for other in range(50):
        assert choice_margin(row, at, other) == pytest.approx(scores.max() - scores[other])


def test_an_id_below_the_top_k_border_is_as_far_as_the_border():
    row = torch.tensor([5.0, 4.0, 3.999, 1.0])
    at = point(top_k=2, temperature=1e-3)
    assert choice_margin(row, at, 2) == pytest.approx(1.0, abs=0.1)  # enters, but 0 still wins
    # with enough heat the dropped id wins as soon as it enters
    hot = next(
        candidate
        for candidate in (point(top_k=2, temperature=5.0, seed=seed) for seed in range(200))
        if np.argmax(row.numpy() + 5.0 * noise_of(candidate, 4)) == 2
    )
    assert choice_margin(row, hot, 2) == pytest.approx(0.001, abs=1e-6)


def test_border_distance_of_min_p_is_in_logits():
    row = np.array([2.0, 0.0, -1.0])
    params = SamplingParams(1, temperature=2.0, min_p=0.3)  # border 2 + 2 log .3 = -.408
    border = 2 + 2 * math.log(0.3)
    assert border_distance(row, params, 1) == pytest.approx(-border)
    assert border_distance(row, params, 2) == pytest.approx(-1 - border)


def test_border_distance_of_top_k_is_to_the_other_side_of_the_step():
    row = np.array([5.0, 4.0, 1.0])
    params = SamplingParams(1, top_k=2)
    assert border_distance(row, params, 1) == pytest.approx(3.0)
    assert border_distance(row, params, 2) == pytest.approx(-3.0)


ONE_FILTER = [{"top_p": 0.8}, {"top_p": 0.3}, {"top_k": 4}, {"min_p": 0.1}]


@pytest.mark.parametrize("fields", ONE_FILTER, ids=str)
def test_nothing_smaller_than_half_the_distance_changes_sides(fields):
    """Some 10,000 moves of all logits by up to 49% of the distance, the extremes among them."""
    generator = np.random.default_rng(0)
    params = SamplingParams(1, temperature=0.9, **fields)
    for _ in range(20):
        row = generator.normal(0, 2, 8)
        for token_id in range(8):
            distance = border_distance(row, params, token_id)
            kept = token_id in kept_ids(row, params)
            assert (distance > 0) == kept
            for trial in range(60):
                share = generator.uniform(-1, 1, 8)
                steps = np.sign(share) if trial % 2 else share
                moved = row + 0.49 * min(abs(distance), 50.0) * steps
                assert (token_id in kept_ids(moved, params)) == kept


@pytest.mark.parametrize("fields", ONE_FILTER, ids=str)
def test_a_kept_id_can_be_dropped_by_moves_of_half_its_distance(fields):
    generator = np.random.default_rng(1)
    params = SamplingParams(1, temperature=0.9, **fields)
    dropped = 0
    for row in generator.normal(0, 2, (20, 8)):
        for token_id in kept_ids(row, params):
            distance = 1.01 * border_distance(row, params, token_id)
            if distance == math.inf:
                continue
            rising = row > row[token_id] - distance
            rising[token_id] = False
            moved = row + np.where(rising, 0.5, -0.5) * distance
            assert token_id not in kept_ids(moved, params)
            dropped += 1
    assert dropped > 20


def test_a_swap_of_kept_sets_has_a_small_margin_in_both_directions():
    """The mass above an id crosses top_p, although its logit is far from its neighbours'."""
    before = np.log([0.6, 0.2999999, 0.1000001])
    after = np.log([0.6, 0.3000001, 0.0999999])
    for seed in range(100):
        at = point(top_p=0.9, temperature=1.0, seed=seed)
        chosen = [choose(torch.tensor(row)[None], [at])[0] for row in (before, after)]
        if chosen[0] != chosen[1]:
            assert choice_margin(torch.tensor(before), at, chosen[1]) < 1e-5
            assert choice_margin(torch.tensor(after), at, chosen[0]) < 1e-5
            return
    pytest.fail("no seed among 100 took the third id, whose probability is .1")
