"""Draft lengths maximise expected tokens over expected time."""

from __future__ import annotations

import itertools
import random

import pytest

from dvi.decoding.lengths import StepCosts, best_lengths, best_of_one, worth_verifying

# Seconds by proposals in the pass, one session: the jump at two positions and the flat stretch
# after it are those of packed matrices (SPEED.md).
ONE_ROW = StepCosts([36, 43, 42, 47, 48, 49, 51, 53, 54], draft_step_s=4)


def goodput_of(reaches, drafted, lengths, costs) -> float:
    """Expected tokens over seconds of given lengths, draft steps counted as the deepest draft."""
    expected = len(reaches) + sum(sum(r[:n]) for r, n in zip(reaches, lengths, strict=True))
    steps = max((n for n, own in zip(lengths, drafted, strict=True) if own), default=0)
    return expected / (costs.passes[sum(lengths)] + steps * costs.draft_step_s)


@pytest.mark.parametrize("seed", range(60))
def test_no_other_lengths_promise_more(seed):
    rng = random.Random(seed)
    batch = rng.randint(1, 3)
    most = 4
    reaches = []
    for _ in range(batch):
        reach, chance = [], 1.0
        for _ in range(rng.randint(0, most)):
            chance *= rng.random()
            reach.append(chance)
        reaches.append(reach)
    drafted = [rng.random() < 0.5 for _ in range(batch)]
    passes = [10.0 + rng.random() * 5]
    for _ in range(batch * most):
        passes.append(passes[-1] + rng.choice([0.0, 0.3, 4.0]) * rng.random())
    costs = StepCosts(passes, rng.choice([0.0, 0.5, 2.0]))
    best = best_lengths(reaches, drafted, costs)
    others = itertools.product(*(range(len(reach) + 1) for reach in reaches))
    most_possible = max(goodput_of(reaches, drafted, lengths, costs) for lengths in others)
    assert best.goodput == pytest.approx(most_possible)
    assert goodput_of(reaches, drafted, best.lengths, costs) >= best.goodput - 1e-12


def test_nothing_is_proposed_where_nothing_pays():
    hopeless = [0.01, 0.0001]
    assert best_lengths([hopeless], [True], ONE_ROW).lengths == (0,)
    assert best_lengths([hopeless], [False], ONE_ROW).lengths == (0,)
    assert best_lengths([[], []], [True, False], ONE_ROW).lengths == (0, 0)
    assert best_lengths([hopeless], [True], ONE_ROW).goodput == 1 / 36


def test_a_dear_first_position_is_looked_across():
    # One more position costs 7 of 36, eight cost 18: none, or many.
    certain = [0.8**i for i in range(1, 9)]
    assert best_lengths([certain], [False], ONE_ROW).lengths == (8,)
    assert best_lengths([[0.15]], [False], ONE_ROW).lengths == (0,)
    assert best_lengths([[0.6, 0.3, 0.1]], [False], ONE_ROW).lengths[0] >= 2


def test_draft_steps_cost_and_memory_does_not():
    reach = [0.5**i for i in range(1, 9)]
    dear = StepCosts(ONE_ROW.passes, 20)
    assert best_lengths([reach], [True], dear).lengths == (0,)
    assert best_lengths([reach], [False], dear).lengths[0] > 0


def test_the_likely_session_gets_the_positions():
    passes = [40.0 + 6 * n for n in range(17)]  # every position costs: a small machine, batch 2
    sure, doubtful = [0.95**i for i in range(1, 9)], [0.1**i for i in range(1, 9)]
    lengths = best_lengths([doubtful, sure], [False, False], StepCosts(passes, 0)).lengths
    assert lengths[0] == 0
    assert lengths[1] > 0


def test_one_session_alone_is_judged_as_the_whole_batch_would_be():
    reach = [0.7, 0.5]
    alone = best_of_one(1, reach, 4, ONE_ROW)
    assert alone == pytest.approx(best_lengths([reach], [True], ONE_ROW).goodput)
    assert best_of_one(1, [], 4, ONE_ROW) == 1 / 36


def test_what_was_drafted_is_verified_only_as_far_as_it_pays():
    goodput = 1 / 36
    assert worth_verifying([0.05, 0.01], goodput, ONE_ROW.passes, 0) == 0
    assert worth_verifying([0.9, 0.8, 0.001], goodput, ONE_ROW.passes, 0) == 2
    # At two positions nothing pays, at three it does: 42 s cost less than 43.
    assert worth_verifying([0.16, 0.15], goodput, ONE_ROW.passes, 0) == 2
    assert worth_verifying([], goodput, ONE_ROW.passes, 0) == 0
