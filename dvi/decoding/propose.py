"""Asking the sources, and living without them where they fail.

Owns the fault boundary around everything that only speeds decoding up; does not know the target's
choice. A fault here costs acceptance, never an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from dvi.decoding.faults import FAULTS
from dvi.decoding.plans import Drafting, DraftPlan, Offers
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Phase
from dvi.drafting import Drafter, DraftRequest, Proposal
from dvi.drafting.auto import sources_of
from dvi.drafting.base import Context
from dvi.drift import Turn
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan
from dvi.sampling import Purpose
from dvi.types import Source, Trace, Verification

logger = logging.getLogger(__name__)

NOTHING = Proposal(ids=(), logprobs=(), source=Source.TARGET, adapter_version=0)


class Proposer:
    """The drafter as the engine sees it. Decode thread only.

    A fault ends speculation for the sessions it touched: their draft state may lack positions.
    """

    def __init__(
        self,
        drafter: Drafter,
        cache: KvCache,
        ledger: Ledger,
        verification: Verification = Verification.COUPLED,
    ) -> None:
        self._drafter = drafter
        self._sources = sources_of(drafter)
        self._cache = cache  # the target's; draft steps write shallow layers past each row's length
        self._ledger = ledger
        exact = verification is Verification.REJECTION
        self._purpose = Purpose.PROPOSAL if exact else Purpose.CHOICE

    def offers(
        self,
        sessions: Sequence[Session],
        most: Callable[[Session], int],
        turn: Turn = Turn.ALONE,
    ) -> Offers:
        """What may be proposed to these sessions, ``most`` tokens each: nothing is drafted yet."""
        recalled = dict.fromkeys((one.row for one in sessions), NOTHING)
        asking = [one for one in sessions if most(one)]
        if self._sources.memory is not None and asking:
            requests = [make_draft_request(one, most(one), self._purpose) for one in asking]
            try:
                answers = self._sources.memory.recall(requests)
                recalled.update({one.row: a for one, a in zip(asking, answers, strict=True)})
            except FAULTS:
                self.give_up(asking)
        return Offers(
            [recalled[one.row] for one in sessions],
            can_draft=self._sources.neural is not None,
            adapter_version=self._drafter.adapter_version,
            published=self._drafter.expected_acceptance,
            turn=turn,
        )

    def propose(
        self, sessions: Sequence[Session], offers: Offers, plans: Sequence[DraftPlan]
    ) -> list[Proposal]:
        """One proposal a session as planned, or less where its source has no more to say."""
        proposals = {
            one.row: first_of(recalled, plan.length) if plan.source is Source.MEMORY else NOTHING
            for one, recalled, plan in zip(sessions, offers.recalled, plans, strict=True)
        }
        drafting = {
            one.row: (one, plan)
            for one, plan in zip(sessions, plans, strict=True)
            if plan.source is Source.NEURAL and one.may_draft
        }
        try:
            proposals.update(self._draft(list(drafting.values())))
            proposals = {one.row: cut_by_rules(one, proposals[one.row]) for one in sessions}
        except FAULTS:
            self.give_up([one for one, _ in drafting.values()] or sessions)
            proposals = dict.fromkeys(proposals, NOTHING)
        if sessions:
            self._ledger.book_draft_len(max(len(answer.ids) for answer in proposals.values()))
        self._ledger.lap(Phase.DRAFT)
        return [proposals[one.row] for one in sessions]

    def remember(self, ended: Sequence[tuple[Session, Trace]]) -> None:
        """Let the memory learn complete answers."""
        memory = self._sources.memory
        if memory is None:
            return
        for session, trace in ended:
            memory.remember_trace(trace, session.request.scope)

    def observe(self, hidden: Tensor, plan: Plan, sessions: Sequence[Session]) -> None:
        """Show the drafter the shallow states [N, H] of a pass over these sessions."""
        try:
            self._drafter.observe(hidden, plan)
        except FAULTS:
            self.give_up(sessions)

    def share(self, source_row: int, session: Session, end: int) -> None:
        """Take the draft's state of [num_cached, end) over from a row with the same tokens."""
        try:
            self._drafter.share(source_row, session.row, session.num_cached, end)
        except FAULTS:
            self.give_up([session])

    def give_up(self, sessions: Sequence[Session]) -> None:
        """Called while a drafter's fault is handled: go on without proposals."""
        logger.exception("drafter failed; %d requests go on without it", len(sessions))
        self._ledger.book_fault(of_drafter=True)
        for session in sessions:
            session.lose_draft()

    def _draft(self, drafting: Sequence[tuple[Session, DraftPlan]]) -> dict[int, Proposal]:
        """Ask the learned draft; by row."""
        if not drafting or self._sources.neural is None:
            return {}
        requests = [
            make_draft_request(one, plan.length, self._purpose, plan.drafting)
            for one, plan in drafting
        ]
        answers = self._sources.neural.propose(requests, self._cache)
        by_row = {}
        for (session, plan), answer in zip(drafting, answers, strict=True):
            if len(answer.ids) > plan.length:
                raise ValueError(f"{len(answer.ids)} proposals where {plan.length} may be")
            kept = len(answer.ids) if plan.drafting is None else plan.drafting.num_kept()
            by_row[session.row] = first_of(answer, kept)
        return by_row


def first_of(proposal: Proposal, length: int) -> Proposal:
    """The first ``length`` tokens of a proposal, with what speaks for them."""
    if length >= len(proposal.ids):
        return proposal if proposal.ids else NOTHING
    if length == 0:
        return NOTHING
    logits = proposal.draft_logits
    return replace(
        proposal,
        ids=proposal.ids[:length],
        logprobs=proposal.logprobs[:length],
        matches=proposal.matches[:length],
        draft_logits=None if logits is None else logits[:length],
    )


def cut_by_rules(session: Session, proposal: Proposal) -> Proposal:
    """Only what a grammar lets stand; also walks the session's rules back."""
    if session.rules is None:
        return proposal
    session.rules.settle()
    num_kept = session.rules.num_allowed(proposal.ids, proposal.source)
    if num_kept == len(proposal.ids):
        return proposal
    if num_kept == 0:
        return NOTHING
    return replace(
        proposal,
        ids=proposal.ids[:num_kept],
        logprobs=proposal.logprobs[:num_kept],
        matches=proposal.matches[:num_kept],
    )


def make_draft_request(
    session: Session,
    draft_len: int,
    purpose: Purpose = Purpose.CHOICE,
    drafting: Drafting | None = None,
) -> DraftRequest:
    """What a source needs to know of a session."""
    request = session.request
    return DraftRequest(
        row=session.row,
        position=session.last_position,
        token=session.tokens[-1],
        draft_len=draft_len,
        params=request.sampling,
        context=Context(session.tokens, request.prediction_ids, request.scope),
        goes_on=None if drafting is None else drafting.goes_on,
        rules=session.rules,
        purpose=purpose,
    )
