"""A learned draft stops on the chance that all it proposed is accepted, not on its last token."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest

from dvi.decoding.lengths import StepCosts
from dvi.decoding.plans import Drafting

MOST = 8
# Seconds by proposals (SPEED.md, in units of a plain step), and a pass that jumps at the fourth.
FLAT = StepCosts([1.0, 1.19, 1.25, 1.3, 1.33, 1.36, 1.4, 1.45, 1.5], 0.1)
JUMP = StepCosts([1.0, 1.05, 1.1, 1.1, *[2.4] * 8], 0.1)


@dataclass
class Known:
    """Rates that believe a draft's own probability and expect ``ahead`` of what follows."""

    ahead: float

    def before(self, index: int) -> float:
        return self.ahead

    def after(self, index: int, logprob: float) -> float:
        return math.exp(logprob)


def drafting(costs: StepCosts, goodput: float, ahead: float = 0.8, num_others: int = 0) -> Drafting:
    return Drafting(
        rates=Known(ahead),
        fit=1.0,
        goodput=goodput,
        costs=costs,
        step_s=costs.draft_step_s,
        num_others=num_others,
        most=MOST,
    )


def walk(one: Drafting, confidences: list[float]) -> list[bool]:
    """What it says after each proposal, asked to the end."""
    return [one.goes_on(i, math.log(p)) for i, p in enumerate(confidences)]


@pytest.mark.parametrize("costs", [FLAT, JUMP])
@pytest.mark.parametrize("seed", range(20))
def test_it_goes_on_exactly_while_some_longer_draft_is_worth_its_time(costs, seed):
    rng = random.Random(seed)
    confidences = [rng.uniform(0.3, 1.0) for _ in range(MOST)]
    goodput, ahead = rng.uniform(0.6, 4.0), rng.uniform(0.2, 1.0)
    for index, said in enumerate(walk(drafting(costs, goodput, ahead), confidences)):
        drafted = index + 1
        reached = math.prod(confidences[:drafted])
        worths = []
        for length in range(drafted + 1, MOST + 1):
            tokens = sum(reached * ahead**more for more in range(1, length - drafted + 1))
            seconds = (length - drafted) * costs.draft_step_s
            seconds += costs.passes[length] - costs.passes[drafted]
            worths.append(tokens - goodput * seconds)
        assert said == any(worth >= 0 for worth in worths)


def test_it_depends_on_the_product_of_confidences_alone():
    for order in itertools.permutations([0.9, 0.5, 0.7, 0.95]):
        said = walk(drafting(FLAT, 3.0), list(order))[-1]
        assert said == walk(drafting(FLAT, 3.0), [0.9, 0.5, 0.7, 0.95])[-1]


def test_confidences_that_are_each_enough_together_are_not():
    confidence = 0.6
    assert walk(drafting(FLAT, 2.0, ahead=0.6), [confidence])[0]
    said = walk(drafting(FLAT, 2.0, ahead=0.6), [confidence] * MOST)
    first_stop = said.index(False)
    assert 0 < first_stop < MOST - 1
    # One more: a draft step and a wider pass for the chance of all of them.
    marginal = [
        confidence ** (i + 2) - 2.0 * (0.1 + FLAT.passes[i + 2] - FLAT.passes[i + 1])
        for i in range(first_stop + 1)
    ]
    assert marginal[first_stop] < 0


def test_less_confidence_never_drafts_longer():
    rng = random.Random(5)
    for _ in range(200):
        high = [rng.uniform(0.3, 1.0) for _ in range(MOST)]
        low = [p * rng.uniform(0.5, 1.0) for p in high]
        costs, goodput = rng.choice([FLAT, JUMP]), rng.uniform(0.6, 4.0)
        more, less = (walk(drafting(costs, goodput), ps) for ps in (high, low))
        assert all(not late or early for early, late in zip(more, less, strict=True))


def test_a_jump_in_the_pass_is_looked_across():
    # Four proposals cost 1.3 more than three, eight no more than four.
    assert walk(drafting(JUMP, 2.0, ahead=0.95), [0.99] * 3)[-1]
    assert not walk(drafting(JUMP, 2.0, ahead=0.5), [0.99] * 3)[-1]


def test_other_sessions_proposals_are_in_the_same_pass():
    # Beside two of others its second one is the fourth of the pass, where that gets dear.
    assert walk(drafting(JUMP, 2.0, 0.5), [0.9])[0]
    assert not walk(drafting(JUMP, 2.0, 0.5, num_others=2), [0.9])[0]


def test_it_never_goes_past_the_longest_draft():
    assert walk(drafting(FLAT, 0.01), [1.0] * MOST)[-1] is False


def test_a_draft_may_be_dropped_whole_and_kept_whole():
    hopeless, certain = drafting(FLAT, 1.0), drafting(FLAT, 1.0)
    walk(hopeless, [0.01] * MOST)
    walk(certain, [0.99] * MOST)
    assert (hopeless.num_kept(), certain.num_kept()) == (0, MOST)
