"""Sources and draft lengths follow acceptance and costs, and repeat exactly (fact 8)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import Controller
from dvi.decoding.costs import CostProfile
from dvi.decoding.plans import Offers
from dvi.decoding.probes import PROBE_LEN
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.drafting import Proposal
from dvi.drafting.base import Match
from dvi.types import Delta, Round, Source
from tests.decoding.engines import LetterDecoder, make_request
from tests.decoding.profiles import LINEAR, profile

CONFIG = DecodingConfig(max_draft_len=8, draft_len=4, probe_interval_rounds=16)
MATCH = Match(5, 2, 2)
NOTHING = Proposal((), (), Source.TARGET, 0)


def session(row: int = 0, **fields: object) -> Session:
    request = replace(make_request("r", (1, 2), max_tokens=100_000), **fields)
    return Session(request, row, 200_000, LetterDecoder())


@dataclass
class World:
    """A memory and a draft whose every proposal is accepted with a given probability."""

    neural: float | None = None  # None: there is none
    memory: float | None = None
    logprob: float = -0.5
    match: Match = MATCH
    version: int = 0
    published: float | None = None

    def offers(self, num_sessions: int) -> Offers:
        known = NOTHING
        if self.memory is not None:
            known = Proposal((7,) * 8, (), Source.MEMORY, 0, (self.match,) * 8)
        return Offers([known] * num_sessions, self.neural is not None, self.version, self.published)


def run_round(
    controller: Controller, sessions: Sequence[Session], world: World, rng: random.Random
) -> list[tuple[Source, int]]:
    """One round: what each session proposed for verification."""
    offers = world.offers(len(sessions))
    plans = controller.plan(sessions, offers)
    proposals, commits = [], []
    for plan in plans:
        proposal, alpha = NOTHING, 0.0
        if plan.source is Source.MEMORY:
            assert world.memory is not None
            alpha, length = world.memory, plan.length
            proposal = Proposal((7,) * length, (), Source.MEMORY, 0, (world.match,) * length)
        elif plan.source is Source.NEURAL:
            assert world.neural is not None
            alpha, length = world.neural, 0
            while length < plan.length:
                length += 1
                if plan.drafting and not plan.drafting.goes_on(length - 1, world.logprob):
                    break
            length = plan.drafting.num_kept() if plan.drafting else length
            if length:
                scores = (world.logprob,) * length
                proposal = Proposal((7,) * length, scores, Source.NEURAL, world.version)
        num_accepted = 0
        while num_accepted < len(proposal.ids) and rng.random() < alpha:
            num_accepted += 1
        num_judged = min(num_accepted + 1, len(proposal.ids))
        ids = (7,) * (num_accepted + 1)
        delta = Delta("r", 0, ids, (Source.TARGET,) * len(ids), "")
        round_ = Round(proposal.source, 0, proposal.ids[:num_judged], (), num_accepted)
        proposals.append(proposal)
        commits.append(Commit(delta, round_, len(proposal.ids)))
    controller.learn(sessions, proposals, commits)
    return [(one.source, len(one.ids)) for one in proposals]


def rounds(
    controller: Controller, world: World, num_rounds: int, *, seed: int = 0, batch: int = 1
) -> list[tuple[Source, int]]:
    """All proposals of ``batch`` long sessions."""
    rng = random.Random(seed)
    sessions = [session(row) for row in range(batch)]
    return [one for _ in range(num_rounds) for one in run_round(controller, sessions, world, rng)]


def test_a_hopeless_draft_is_stopped_soon_and_probed_once_an_interval():
    controller = Controller(CONFIG, profile())
    seen = rounds(controller, World(neural=0.0), 400)
    assert sum(length > 0 for _, length in seen[:40]) <= 14
    late = [length for _, length in seen[80:]]
    assert set(late) == {0, PROBE_LEN}
    assert late.count(PROBE_LEN) == 20  # one in sixteen


def test_no_length_pays_where_every_position_costs_as_much_as_the_first():
    for world in (World(neural=0.9), World(memory=0.9)):
        seen = rounds(Controller(CONFIG, LINEAR), world, 200)
        assert sum(length > 0 for _, length in seen) <= 200 // 16 + 1  # probes, one first try


def test_a_draft_that_became_good_is_used_again():
    controller = Controller(CONFIG, profile())
    rounds(controller, World(neural=0.0), 300)
    recovered = rounds(controller, World(neural=0.9), 600, seed=1)
    assert sum(length > 0 for _, length in recovered[-100:]) >= 98


def test_a_published_estimate_brings_a_new_version_back_at_once():
    controller = Controller(CONFIG, profile())
    rounds(controller, World(neural=0.0), 300)
    seen = rounds(controller, World(neural=0.9, version=2, published=0.9), 40, seed=1)
    assert sum(length > 0 for _, length in seen) >= 38
    slow = Controller(CONFIG, profile())
    rounds(slow, World(neural=0.0), 300)
    without = rounds(slow, World(neural=0.9), 40, seed=1)
    assert sum(length > 0 for _, length in without) < 20


@pytest.mark.parametrize("good", [Source.NEURAL, Source.MEMORY])
def test_the_source_of_higher_expected_accepted_length_proposes(good):
    neural, memory = (0.8, 0.3) if good is Source.NEURAL else (0.3, 0.8)
    seen = rounds(Controller(CONFIG, profile()), World(neural, memory), 400)
    counts = Counter(source for source, _ in seen[100:])
    assert counts[good] >= 270
    other = Source.MEMORY if good is Source.NEURAL else Source.NEURAL
    assert counts[other] >= 300 // 17  # it is still measured


def test_the_memory_wins_at_equal_acceptance_since_it_costs_nothing():
    seen = rounds(Controller(CONFIG, profile(draft_step_s=0.01)), World(0.7, 0.7), 300)
    assert Counter(source for source, _ in seen[100:])[Source.MEMORY] >= 180


def test_better_acceptance_means_longer_drafts():
    means = []
    for alpha in (0.3, 0.6, 0.9):
        seen = rounds(Controller(CONFIG, profile()), World(neural=alpha), 500)
        used = [length for _, length in seen[200:] if length]
        means.append(sum(used) / max(len(used), 1))
    assert means[0] < means[1] < means[2]


@pytest.mark.parametrize("kind", ["neural", "memory"])
def test_every_length_from_none_to_the_longest_is_in_reach(kind):
    """Costs of a machine where each position adds a little: the best length moves with alpha."""
    costs = profile(((1, 0.036), (9, 0.072)), draft_step_s=0.002)
    lengths: set[int] = set()
    for alpha in (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        seen = rounds(Controller(CONFIG, costs), World(**{kind: alpha}), 300)
        lengths |= {length for _, length in seen}
    assert lengths == set(range(9))


def test_a_draft_stops_early_where_it_is_not_confident():
    rng = random.Random(0)
    controller = Controller(CONFIG, profile(draft_step_s=0.01))
    sure, doubtful = World(neural=0.95, logprob=-0.02), World(neural=0.05, logprob=-2.0)
    for _ in range(300):
        run_round(controller, [session()], rng.choice([sure, doubtful]), rng)
    (plan,) = controller.plan([session()], sure.offers(1))
    assert plan.source is Source.NEURAL
    assert plan.drafting is not None
    assert not plan.drafting.goes_on(0, doubtful.logprob)
    assert plan.drafting.num_kept() == 0
    (plan,) = controller.plan([session()], sure.offers(1))
    assert plan.drafting is not None
    assert plan.drafting.goes_on(0, sure.logprob)


def test_a_session_that_fares_otherwise_than_the_rest_is_treated_otherwise():
    controller = Controller(CONFIG, profile())
    rng = random.Random(3)
    lucky, unlucky = session(0), session(1)
    good, bad = World(memory=0.95), World(memory=0.0)
    for _ in range(60):
        run_round(controller, [lucky], good, rng)
        run_round(controller, [unlucky], bad, rng)
    plans = controller.plan([lucky, unlucky], good.offers(2))
    assert plans[0].length > plans[1].length


def simulated_s(controller: Controller, world: World, costs: CostProfile, num_rounds: int) -> float:
    """Seconds a token by the profile."""
    rng = random.Random(1)
    one = session()
    seconds = tokens = 0.0
    for _ in range(num_rounds):
        before = one.counts.rounds
        (source_length,) = run_round(controller, [one], world, rng)
        source, length = source_length
        seconds += costs.pass_s(1, 1 + length)
        seconds += length * costs.draft_s(1) if source is Source.NEURAL else 0.0
        alpha = world.memory if source is Source.MEMORY else world.neural
        tokens += sum((alpha or 0.0) ** i for i in range(length + 1))
        assert before == 0  # the session itself is not walked here
    return seconds / tokens


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["neural", "memory"])
def test_drafting_is_never_slower_than_plain_decoding_by_more_than_its_probes(alpha, kind):
    costs = profile()
    config = replace(CONFIG, probe_interval_rounds=64)
    world = World(**{kind: alpha})
    simulated = simulated_s(Controller(config, costs), world, costs, 1500)
    # A probe of two proposals costs (.047 + .008) / .036 of a plain step, once in 64.
    assert simulated <= costs.pass_s(1, 1) * 1.02
    if alpha >= 0.6:  # three proposals: (.047 + 3 * .004) s for 2.18 tokens, .75 of a plain step
        assert simulated < 0.78 * costs.pass_s(1, 1)


def test_fixed_lengths_are_kept_whatever_is_accepted_when_not_adaptive():
    config = replace(CONFIG, adaptive=False)
    for world in (World(neural=0.0), World(memory=0.0)):
        seen = rounds(Controller(config, LINEAR), world, 100)
        assert {length for _, length in seen} == {4}


def test_rounds_in_which_nobody_could_draft_are_no_probes():
    controller = Controller(CONFIG, profile())
    rounds(controller, World(neural=0.0), 160)
    silent = session(speculation=False)
    for _ in range(50):
        (plan,) = controller.plan([silent], World(neural=0.0).offers(1))
        assert plan.length == 0
    assert sum(length > 0 for _, length in rounds(controller, World(neural=0.0), 16)) == 1
    assert controller.plan([], World(neural=0.0).offers(0)) == []


def test_probes_take_turns_in_a_batch():
    controller = Controller(CONFIG, profile())
    rounds(controller, World(neural=0.0), 100, batch=4)
    rng, sessions = random.Random(0), [session(row) for row in range(4)]
    probers = []
    for _ in range(16):
        seen = run_round(controller, sessions, World(neural=0.0), rng)
        probers += [row for row, (_, length) in enumerate(seen) if length]
    assert sorted(probers) == [0, 1, 2, 3]  # sixteen rounds of four: four probes


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_requests_may_ask_for_fewer_proposals(adaptive, limit):
    controller = Controller(replace(CONFIG, adaptive=adaptive), profile())
    world = World(0.95, 0.95)
    longest = 0
    for _ in range(40):
        one, other = session(0, max_draft_len=limit), session(1)
        seen = run_round(controller, [one, other], world, random.Random(0))
        assert seen[0][1] <= limit
        longest = max(longest, seen[1][1])
    assert longest == (8 if adaptive else 4)


def test_drawn_proposals_are_not_dropped_for_what_they_are_in_rejection_mode():
    controller = Controller(replace(CONFIG, verification="rejection"), profile())
    rng = random.Random(0)
    sampled = session(0)
    sampled.request = replace(
        sampled.request, sampling=replace(sampled.request.sampling, temperature=1.0)
    )
    for _ in range(50):
        run_round(controller, [sampled], World(neural=0.9), rng)
    (plan,) = controller.plan([sampled], World(neural=0.9).offers(1))
    assert plan.length > 0
    assert plan.drafting is None


def test_the_configured_length_is_bounded_by_the_longest_allowed():
    controller = Controller(replace(CONFIG, draft_len=6, max_draft_len=3, adaptive=False))
    assert controller.most_proposals(session()) == 3
