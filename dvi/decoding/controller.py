"""Who proposes how much in the coming round: the source and length of highest goodput.

Owns the running estimates that decide it; reads no clock, so a run with a recorded cost profile can
be repeated. Does not know how anything is proposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dvi.config import DecodingConfig
from dvi.decoding.calibration import Calibration, NeuralRates
from dvi.decoding.costs import CostProfile
from dvi.decoding.lengths import (
    Reach,
    StepCosts,
    best_lengths,
    best_of_one,
    worth_verifying,
)
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.drafting import Proposal
from dvi.types import Source

PROBE_LEN = 2  # proposals of a probe: the first says whether, the second how far
SESSION_PRIOR = 4.0  # expected acceptances that a session's own count is weighed against
SESSION_DECAY = 0.98  # a judged token


@dataclass(frozen=True, slots=True)
class Offers:
    """What may be proposed, before anything is drafted."""

    recalled: Sequence[Proposal]  # one a session; empty where the memory knows nothing
    can_draft: bool  # there is a learned draft
    adapter_version: int = 0
    published: float | None = None  # teacher-forced acceptance of that version


@dataclass(slots=True)
class Drafting:
    """One session's learned draft of one round: stops it, and drops what is not worth verifying."""

    rates: NeuralRates
    fit: float  # how this session fares against the rates
    goodput: float  # tokens a second that the time must earn
    costs: StepCosts
    step_s: float  # one more proposal
    num_others: int  # proposals of other sessions in the pass
    most: int
    reach: list[float] = field(default_factory=list)

    def goes_on(self, index: int, logprob: float) -> bool:
        """Whether to draft another one after proposal ``index``, drafted with ``logprob``."""
        before = self.reach[-1] if self.reach else 1.0
        self.reach.append(before * min(self.rates.after(index, logprob) * self.fit, 1.0))
        if index + 1 >= self.most:
            return False
        chance = self.reach[-1] * min(self.rates.before(index + 1) * self.fit, 1.0)
        num_taken = self.num_others + index + 1
        verify_s = self.costs.passes[num_taken + 1] - self.costs.passes[num_taken]
        return chance >= self.goodput * (self.step_s + verify_s)

    def num_kept(self) -> int:
        """Proposals to verify of those drafted."""
        return worth_verifying(self.reach, self.goodput, self.costs.passes, self.num_others)


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What one session proposes in the coming round."""

    source: Source = Source.TARGET
    length: int = 0  # at most
    drafting: Drafting | None = None  # None: exactly ``length``


NO_DRAFT = DraftPlan()


@dataclass(slots=True)
class Fit:
    """Accepted against expected proposals of one session and source, newest first in weight."""

    accepted: float = 0.0
    expected: float = 0.0

    def add(self, expected: float, *, hit: bool) -> None:
        """Count one judged proposal."""
        self.accepted = self.accepted * SESSION_DECAY + hit
        self.expected = self.expected * SESSION_DECAY + expected

    def value(self) -> float:
        """Factor on the rates of everybody."""
        return (self.accepted + SESSION_PRIOR) / (self.expected + SESSION_PRIOR)


@dataclass(slots=True)
class RowFits:
    """Fits of the session on one row."""

    session: Session
    by_source: dict[Source, Fit]


class Controller:
    """Decides sources and draft lengths. Decode thread only.

    ``costs`` None: every session proposes ``decoding.draft_len`` tokens from the source of higher
    expected accepted length, as far as it may and the source can.
    """

    def __init__(self, config: DecodingConfig, costs: CostProfile | None = None) -> None:
        self._costs = costs if config.adaptive else None
        self._most = config.max_draft_len
        self._fixed = min(config.draft_len, config.max_draft_len)
        # A proposal drawn for rejection sampling may not be dropped for what it is (dvi.sampling).
        self._exact_draws = config.verification == "rejection"
        self._probe_interval = config.probe_interval_rounds
        self._calibration = Calibration(max(self._most, 1))
        self._step_costs: dict[int, StepCosts] = {}  # by number of sessions
        self._unused = {Source.NEURAL: 0, Source.MEMORY: 0}  # session rounds since last proposed
        self._num_probes = 0
        self._fits: dict[int, RowFits] = {}  # by row

    def most_proposals(self, session: Session) -> int:
        """Longest proposal that the session can use."""
        most = self._most if self._costs is not None else self._fixed
        return min(session.max_proposals, most)

    def plan(self, sessions: Sequence[Session], offers: Offers) -> list[DraftPlan]:
        """What each session proposes in the coming round of all of them.

        Nothing where a session may not draft; never more than it can still use.
        """
        self._calibration.follow_version(offers.adapter_version, offers.published)
        reaches = [
            self._reaches(session, recalled, can_draft=offers.can_draft)
            for session, recalled in zip(sessions, offers.recalled, strict=True)
        ]
        if self._costs is None:
            plans = [_longest(own) for own in reaches]
        else:
            plans = self._most_productive(sessions, reaches)
        return self._with_probes(plans, reaches)

    def learn(
        self, sessions: Sequence[Session], proposals: Sequence[Proposal], commits: Sequence[Commit]
    ) -> None:
        """Take the fate of this round's proposals into the estimates."""
        for session, proposal, commit in zip(sessions, proposals, commits, strict=True):
            num_judged = len(commit.round.proposed_ids)
            if num_judged:
                self._learn_fit(session, proposal, num_judged, commit.round.num_accepted)
                self._calibration.learn(
                    proposal, num_judged, commit.round.num_accepted, sampled=is_sampled(session)
                )

    def expected_acceptance(self, source: Source) -> float:
        """What is expected of the first proposal of a greedy round, for gauges."""
        if source is Source.MEMORY:
            return self._calibration.memory(sampled=False).overall()
        return self._calibration.neural(sampled=False).before(0)

    def _reaches(
        self, session: Session, recalled: Proposal, *, can_draft: bool
    ) -> dict[Source, Reach]:
        """By source, the reach of everything that this session could propose."""
        most = self.most_proposals(session)
        if not most:
            return {}
        reaches: dict[Source, Reach] = {}
        sampled = is_sampled(session)
        if recalled.ids:
            rates = self._calibration.memory(sampled=sampled)
            fit = self._fit(session, Source.MEMORY).value()
            reaches[Source.MEMORY] = products(
                [rates.value(match) * fit for match in recalled.matches[:most]]
            )
        if can_draft:
            neural = self._calibration.neural(sampled=sampled)
            fit = self._fit(session, Source.NEURAL).value()
            reaches[Source.NEURAL] = products([neural.before(i) * fit for i in range(most)])
        return reaches

    def _most_productive(
        self, sessions: Sequence[Session], reaches: Sequence[dict[Source, Reach]]
    ) -> list[DraftPlan]:
        batch = len(sessions)
        if not any(reaches):
            return [NO_DRAFT] * batch
        costs = self._costs_of(batch)
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
                    rates=self._calibration.neural(sampled=is_sampled(session)),
                    fit=self._fit(session, Source.NEURAL).value(),
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
        self, plans: list[DraftPlan], reaches: Sequence[dict[Source, Reach]]
    ) -> list[DraftPlan]:
        """Let one session try a source that nobody has used for long."""
        for source in self._unused:
            able = [i for i, own in enumerate(reaches) if source in own]
            if any(plan.source is source for plan in plans):
                self._unused[source] = 0
                continue
            self._unused[source] += len(able)
            if able and self._unused[source] >= self._probe_interval:
                self._unused[source] = 0
                self._num_probes += 1
                prober = able[self._num_probes % len(able)]
                length = len(reaches[prober][source])
                plans[prober] = DraftPlan(
                    source, length if self._costs is None else min(PROBE_LEN, length)
                )
        return plans

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

    def _fit(self, session: Session, source: Source) -> Fit:
        fits = self._fits.get(session.row)
        if fits is None or fits.session is not session:
            fits = RowFits(session, {Source.NEURAL: Fit(), Source.MEMORY: Fit()})
            self._fits[session.row] = fits
        return fits.by_source[source]

    def _learn_fit(
        self, session: Session, proposal: Proposal, num_judged: int, num_accepted: int
    ) -> None:
        fit = self._fit(session, proposal.source)
        expected = self._calibration.expected(proposal, num_judged, sampled=is_sampled(session))
        for index, rate in enumerate(expected):
            fit.add(rate, hit=index < num_accepted)


def is_sampled(session: Session) -> bool:
    """Whether the session's choices are drawn: acceptance then follows another law."""
    return session.request.sampling.temperature > 0


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
