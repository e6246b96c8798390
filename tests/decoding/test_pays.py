"""Speculation pays: simulated goodput against plain decoding and the best fixed length (fact 8).

Laws of acceptance are constant; what speaks for a proposal (match lengths, shares, confidences) is
drawn at random and says nothing, so every estimate has to be learned. Tokens are counted by their
expectation, outcomes are drawn: the noise that is left is the controller's own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import Controller
from dvi.decoding.costs import CostProfile
from dvi.decoding.plans import Offers
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.drafting import Proposal
from dvi.drafting.base import Match
from dvi.types import Delta, Round, Source
from tests.decoding.engines import LetterDecoder, make_request
from tests.decoding.profiles import LINEAR, profile

BURN_IN = 60  # rounds that the bound against plain leaves out: as many tokens, one short answer
SETTLED = 240  # rounds that the bound against the best length leaves out: four answers
GATE_ROUNDS, FULL_ROUNDS = 800, 2500
SESSION_ROUNDS = 60  # a session's answer
NOTHING = Proposal((), (), Source.TARGET, 0)
LENGTHS = (1, 2, 3, 4, 6, 9, 16)
PACKED = profile()
# Plain matrices (SPEED.md): one to three positions cost alike, more cost 2.4 times as much.
STEEP = profile(((1, 0.036), (3, 0.040), (4, 0.087), (9, 0.1)))
COSTS = {"packed": PACKED, "steep": STEEP, "linear": LINEAR}


@dataclass
class Law:
    """A source whose every proposal is accepted with one probability."""

    source: Source
    alpha: float

    def offers(self, rng: random.Random) -> Offers:
        if self.source is Source.NEURAL:
            return Offers([NOTHING], can_draft=True)
        length, total = rng.choice(LENGTHS), rng.choice((1, 2, 4))
        agreed = rng.randint(1, total)
        matches = tuple(Match(length + more, agreed, total) for more in range(8))
        return Offers([Proposal((7,) * 8, (), Source.MEMORY, 0, matches)], can_draft=False)


@dataclass
class Run:
    """Seconds by the profile, and expected tokens."""

    seconds: float = 0.0
    tokens: float = 0.0

    def add(self, seconds: float, alpha: float, length: int) -> None:
        self.seconds += seconds
        self.tokens += sum(alpha**power for power in range(length + 1))

    def goodput(self) -> float:
        return self.tokens / self.seconds


def simulate(
    law: Law, costs: CostProfile, temperature: float, seed: int, num_rounds: int
) -> tuple[Run, Run]:
    """What comes after the burn-in, and after the estimates have settled."""
    rng = random.Random(seed)
    config = DecodingConfig(max_draft_len=8)
    controller = Controller(config, costs)
    late, settled = Run(), Run()
    one = None
    for number in range(num_rounds):
        if number % SESSION_ROUNDS == 0:
            request = make_request("r", (1, 2), max_tokens=100_000, temperature=temperature)
            one = Session(request, 0, 200_000, LetterDecoder())
        assert one is not None
        offers = law.offers(rng)
        (plan,) = controller.plan([one], offers)
        scores: tuple[float, ...] = ()
        proposal, num_steps = NOTHING, 0
        if plan.source is Source.MEMORY:
            (recalled,) = offers.recalled
            proposal = Proposal(
                recalled.ids[: plan.length], (), plan.source, 0, recalled.matches[: plan.length]
            )
        elif plan.source is Source.NEURAL:
            while num_steps < plan.length:
                scores = (*scores, -2 * rng.random())
                num_steps += 1
                if plan.drafting and not plan.drafting.goes_on(num_steps - 1, scores[-1]):
                    break
            kept = plan.drafting.num_kept() if plan.drafting else num_steps
            if kept:
                proposal = Proposal((7,) * kept, scores[:kept], plan.source, 0)
        length = len(proposal.ids)
        num_accepted = 0
        while num_accepted < length and rng.random() < law.alpha:
            num_accepted += 1
        judged = proposal.ids[: num_accepted + 1]
        ids = (7,) * (num_accepted + 1)
        delta = Delta("r", 0, ids, (Source.TARGET,) * len(ids), "")
        round_ = Round(proposal.source, 0, judged, (), num_accepted)
        controller.learn([one], [proposal], [Commit(delta, round_, length)])
        for run, start in ((late, BURN_IN), (settled, SETTLED)):
            if number >= start:
                seconds = costs.pass_s(1, 1 + length) + num_steps * costs.draft_s(1)
                run.add(seconds, law.alpha, length)
    return late, settled


def best_fixed(law: Law, costs: CostProfile) -> float:
    """Goodput of the best constant length, none included."""

    def goodput(length: int) -> float:
        steps = length if law.source is Source.NEURAL else 0
        run = Run()
        run.add(costs.pass_s(1, 1 + length) + steps * costs.draft_s(1), law.alpha, length)
        return run.goodput()

    return max(map(goodput, range(9)))


def check_law(law: Law, costs: CostProfile, temperature: float, num_rounds: int) -> None:
    """0.97 of plain, always; 0.95 of the best fixed length where that gains a fifth."""
    plain = 1 / costs.pass_s(1, 1)
    best = best_fixed(law, costs)
    late, settled = simulate(law, costs, temperature, int(law.alpha * 100), num_rounds)
    print(
        f"alpha={law.alpha} best={best / plain:.3f} after {BURN_IN}: {late.goodput() / plain:.3f} "
        f"after {SETTLED}: {settled.goodput() / plain:.3f}"
    )
    assert late.goodput() >= 0.97 * plain
    if best > 1.2 * plain:
        assert settled.goodput() >= 0.95 * best


@pytest.mark.parametrize("alpha", [0.0, 0.15, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize(
    ("source", "temperature"),
    [(Source.MEMORY, 0.0), (Source.MEMORY, 0.8), (Source.MEMORY, 1.0), (Source.NEURAL, 0.8)],
)
def test_goodput_is_that_of_plain_decoding_at_least_and_near_the_best_fixed_length(
    source, temperature, costs, alpha
):
    check_law(Law(source, alpha), COSTS[costs], temperature, GATE_ROUNDS)


@pytest.mark.slow
@pytest.mark.parametrize("costs", COSTS)
@pytest.mark.parametrize("temperature", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("source", [Source.MEMORY, Source.NEURAL])
def test_goodput_for_every_law_at_full_size(source, temperature, costs):
    for step in range(21):
        check_law(Law(source, step / 20), COSTS[costs], temperature, FULL_ROUNDS)
