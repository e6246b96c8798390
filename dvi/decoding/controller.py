"""Who proposes how much in the coming round: the source and length of highest goodput.

Owns the running estimates that decide it; reads no clock, so a run with a recorded cost profile can
be repeated. Does not know how anything is proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dvi.config import DecodingConfig
from dvi.decoding.calibration import UNTRIED, Calibration
from dvi.decoding.costs import CostProfile
from dvi.decoding.fits import Fits
from dvi.decoding.lengths import (
    Reach,
    StepCosts,
    best_lengths,
    best_of_one,
)
from dvi.decoding.memory_rates import heat
from dvi.decoding.pace import Pace, TimedStep
from dvi.decoding.plans import NO_DRAFT, Drafting, DraftPlan, Offers
from dvi.decoding.probes import PROBE_LEN, Probes
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.drafting import Proposal
from dvi.drift import Turn
from dvi.types import Source


class Controller:
    """Decides sources and draft lengths. Decode thread only.

    ``costs`` None: every session proposes ``decoding.draft_len`` tokens from the source of higher
    expected accepted length, as far as it may and the source can. ``pace`` None: ``costs`` stand
    as they are, and the same requests lead to the same rounds.
    """

    def __init__(
        self, config: DecodingConfig, costs: CostProfile | None = None, pace: Pace | None = None
    ) -> None:
        self._costs = costs if config.adaptive else None
        self._most = config.max_draft_len
        self._fixed = min(config.draft_len, config.max_draft_len)
        # A proposal drawn for rejection sampling may not be dropped for what it is (dvi.sampling).
        self._exact_draws = config.verification == "rejection"
        self._probes = Probes(config.probe_interval_rounds)
        self._pace = pace
        self._calibration = Calibration(max(self._most, 1))
        self._step_costs: dict[int, StepCosts] = {}  # by number of sessions
        self._fits = Fits()
        self._num_forced = 0

    def most_proposals(self, session: Session) -> int:
        """Longest proposal that the session can use."""
        most = self._most if self._costs is not None else self._fixed
        return min(session.max_proposals, most)

    def plan(self, sessions: Sequence[Session], offers: Offers) -> list[DraftPlan]:
        """What each session proposes in the coming round of all of them.

        Nothing where a session may not draft; never more than it can still use. A canary's turn
        is planned by what the version in charge has shown.
        """
        if offers.turn is not Turn.CANARY:
            self._calibration.follow_version(offers.adapter_version, offers.published)
        reaches = [
            self._reaches(session, recalled, can_draft=offers.can_draft)
            for session, recalled in zip(sessions, offers.recalled, strict=True)
        ]
        if self._costs is None:
            plans = [_longest(own) for own in reaches]
        else:
            plans = self._most_productive(sessions, reaches)
        plans = self._with_probes(plans, sessions, reaches)
        return plans if offers.turn is Turn.ALONE else self._as_arm(plans, reaches)

    def learn(
        self, sessions: Sequence[Session], proposals: Sequence[Proposal], commits: Sequence[Commit]
    ) -> None:
        """Take the fate of this round's proposals into the estimates, but not a canary's."""
        version = self._calibration.adapter_version
        for session, proposal, commit in zip(sessions, proposals, commits, strict=True):
            num_judged = len(commit.round.proposed_ids)
            is_canary = proposal.source is Source.NEURAL and proposal.adapter_version != version
            if num_judged and not is_canary:
                self._learn_fit(session, proposal, num_judged, commit.round.num_accepted)
                self._calibration.learn(
                    proposal, num_judged, commit.round.num_accepted, heat_of(session)
                )

    def book_time(
        self,
        sessions: Sequence[Session],
        plans: Sequence[DraftPlan],
        proposals: Sequence[Proposal],
        seconds: float,
    ) -> None:
        """Take the time of a whole step of rounds alone into the estimates of what steps cost."""
        if self._pace is not None and sessions:
            self._pace.book(
                TimedStep(
                    batch=len(sessions),
                    sampled=any(map(is_sampled, sessions)),
                    num_proposals=sum(len(one.ids) for one in proposals),
                    num_draft_steps=max(plan.num_drafted() for plan in plans),
                    seconds=seconds,
                )
            )

    def expected_acceptance(self, source: Source) -> float:
        """What is expected of the first proposal of a greedy round, for gauges."""
        if source is Source.MEMORY:
            return self._calibration.memory(0).overall(UNTRIED)
        return self._calibration.neural(0).before(0)

    def _reaches(
        self, session: Session, recalled: Proposal, *, can_draft: bool
    ) -> dict[Source, Reach]:
        """By source, the reach of everything that this session could propose."""
        most = self.most_proposals(session)
        if not most:
            return {}
        reaches: dict[Source, Reach] = {}
        kind = heat_of(session)
        if recalled.ids:
            rates = self._calibration.memory(kind)
            fit = self._fits.of(session, Source.MEMORY).value()
            reaches[Source.MEMORY] = products(
                [rates.value(match) * fit for match in recalled.matches[:most]]
            )
        if can_draft:
            neural = self._calibration.neural(kind)
            fit = self._fits.of(session, Source.NEURAL).value()
            reaches[Source.NEURAL] = products([neural.before(i) * fit for i in range(most)])
        return reaches

    def _most_productive(
        self, sessions: Sequence[Session], reaches: Sequence[dict[Source, Reach]]
    ) -> list[DraftPlan]:
        batch = len(sessions)
        if not any(reaches):
            return [NO_DRAFT] * batch
        costs = self._costs_of(batch)
        if self._pace is not None:
            drawn = any(map(is_sampled, sessions))
            costs = self._pace.corrected(costs, batch, sampled=drawn)
        share_s = costs.draft_step_s / batch
        sources = [self._better(own, batch, share_s, costs) for own in reaches]
        drafted = [source is Source.NEURAL for source in sources]
        chosen = [own.get(source, ()) for own, source in zip(reaches, sources, strict=True)]
        best = best_lengths(chosen, drafted, costs)
        num_proposals = sum(best.lengths)
        plans = []
        for session, source, length in zip(sessions, sources, best.lengths, strict=True):
            plan = DraftPlan(source, length) if length else NO_DRAFT
            if plan.source is Source.NEURAL and not (self._exact_draws and is_sampled(session)):
                most = self.most_proposals(session)
                drafting = Drafting(
                    rates=self._calibration.neural(heat_of(session)),
                    fit=self._fits.of(session, Source.NEURAL).value(),
                    goodput=best.goodput,
                    costs=costs,
                    step_s=costs.draft_step_s / sum(drafted),
                    num_others=num_proposals - length,
                    most=most,
                )
                plan = replace(plan, length=most, drafting=drafting)
            plans.append(plan)
        return plans

    def _better(
        self, reaches: dict[Source, Reach], batch: int, share_s: float, costs: StepCosts
    ) -> Source:
        """The source that promises more if this session alone proposes; the memory on a tie."""

        def goodput(source: Source) -> float:
            step_s = share_s if source is Source.NEURAL else 0.0
            return best_of_one(batch, reaches[source], step_s, costs)

        return max(reaches, key=goodput, default=Source.TARGET)

    def _with_probes(
        self,
        plans: list[DraftPlan],
        sessions: Sequence[Session],
        reaches: Sequence[dict[Source, Reach]],
    ) -> list[DraftPlan]:
        """Let one session of a kind try a source that none of them has used for long."""
        heats = [heat_of(session) for session in sessions]
        for source in (Source.NEURAL, Source.MEMORY):
            for kind in sorted(set(heats)):
                able = [i for i, own in enumerate(reaches) if source in own and heats[i] == kind]
                if any(plans[i].source is source for i in able):
                    self._probes.used((source, kind))
                    continue
                dearness = self._dearness(source, len(sessions)) if able else 0.0
                prober = self._probes.prober((source, kind), able, dearness)
                if prober is not None:
                    length = len(reaches[prober][source])
                    most = length if self._costs is None else min(PROBE_LEN, length)
                    plans[prober] = DraftPlan(source, most)
        return plans

    def _as_arm(
        self, plans: list[DraftPlan], reaches: Sequence[dict[Source, Reach]]
    ) -> list[DraftPlan]:
        """Both arms of a trial: somebody drafts, and a first proposal is verified whatever the
        draft thinks of it, so that neither estimates nor confidence choose what is compared.
        """
        for plan in plans:
            if plan.drafting is not None:
                plan.drafting.fewest = 1
        able = [i for i, own in enumerate(reaches) if Source.NEURAL in own]
        if able and all(plan.source is not Source.NEURAL for plan in plans):
            self._num_forced += 1
            chosen = able[self._num_forced % len(able)]
            length = min(PROBE_LEN, len(reaches[chosen][Source.NEURAL]))
            plans[chosen] = DraftPlan(Source.NEURAL, length)
        return plans

    def _dearness(self, source: Source, batch: int) -> float:
        """Plain passes of one of ``batch`` sessions that a probe costs."""
        if self._costs is None:
            return 0.0
        passes = self._costs_of(batch).passes
        length = min(PROBE_LEN, len(passes) - 1)
        draft_s = length * self._costs.draft_s(1) if source is Source.NEURAL else 0.0
        return (passes[length] - passes[0] + draft_s) * batch / passes[0]

    def _costs_of(self, batch: int) -> StepCosts:
        known = self._step_costs.get(batch)
        if known is None:
            assert self._costs is not None
            passes = [
                self._costs.pass_s(batch, batch + more) for more in range(batch * self._most + 1)
            ]
            known = StepCosts(passes, self._costs.draft_s(batch))
            self._step_costs[batch] = known
        return known

    def _learn_fit(
        self, session: Session, proposal: Proposal, num_judged: int, num_accepted: int
    ) -> None:
        fit = self._fits.of(session, proposal.source)
        expected = self._calibration.expected(proposal, num_judged, heat_of(session))
        for index, rate in enumerate(expected):
            fit.add(rate, hit=index < num_accepted)


def is_sampled(session: Session) -> bool:
    """Whether the session's choices are drawn, with noise."""
    return session.request.sampling.temperature > 0


def heat_of(session: Session) -> int:
    """Kind of request, for the estimates of what is accepted."""
    return heat(session.request.sampling)


def products(rates: Sequence[float]) -> list[float]:
    """Running products, each factor at most 1."""
    reached, product = [], 1.0
    for rate in rates:
        product *= min(rate, 1.0)
        reached.append(product)
    return reached


def _longest(reaches: dict[Source, Reach]) -> DraftPlan:
    """All of the source of higher expected accepted length; the memory on a tie."""
    if not reaches:
        return NO_DRAFT
    source = max(reaches, key=lambda one: sum(reaches[one]))
    return DraftPlan(source, len(reaches[source]))
