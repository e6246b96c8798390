"""Asking the drafter, and living without it where it fails.

Owns the fault boundary around everything that only speeds decoding up; does not know the target's
choice. A fault here costs acceptance, never an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from dvi.decoding.faults import FAULTS
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Phase
from dvi.drafting import Drafter, DraftRequest, Proposal
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan
from dvi.sampling import Purpose
from dvi.types import Source, Verification

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
        self._cache = cache  # the target's; draft steps write shallow layers past each row's length
        self._ledger = ledger
        exact = verification is Verification.REJECTION
        self._purpose = Purpose.PROPOSAL if exact else Purpose.CHOICE

    def propose(self, sessions: Sequence[Session], draft_lens: Sequence[int]) -> list[Proposal]:
        """One proposal a session, of at most its draft length; empty ones where that is 0."""
        drafting = [one for one, length in zip(sessions, draft_lens, strict=True) if length]
        proposals = dict.fromkeys((one.row for one in sessions), NOTHING)
        if drafting:
            requests = [
                make_draft_request(one, length, self._purpose)
                for one, length in zip(sessions, draft_lens, strict=True)
                if length
            ]
            try:
                answers = self._ask(requests)
                proposals.update({one.row: cut_by_rules(one, answers[one.row]) for one in drafting})
            except FAULTS:
                self.give_up(drafting)
        if sessions:
            self._ledger.book_draft_len(max(len(answer.ids) for answer in proposals.values()))
        self._ledger.lap(Phase.DRAFT)
        return [proposals[one.row] for one in sessions]

    def observe(self, hidden: Tensor, plan: Plan, sessions: Sequence[Session]) -> None:
        """Show the drafter the shallow states [N, H] of a pass over these sessions."""
        try:
            self._drafter.observe(hidden, plan)
        except FAULTS:
            self.give_up(sessions)

    def give_up(self, sessions: Sequence[Session]) -> None:
        """Called while a drafter's fault is handled: go on without proposals."""
        logger.exception("drafter failed; %d requests go on without it", len(sessions))
        self._ledger.book_fault(of_drafter=True)
        for session in sessions:
            session.may_draft = False

    def _ask(self, requests: Sequence[DraftRequest]) -> dict[int, Proposal]:
        answers = self._drafter.propose(requests, self._cache)
        by_row = {}
        for request, answer in zip(requests, answers, strict=True):
            if len(answer.ids) > request.draft_len:
                raise ValueError(f"{len(answer.ids)} proposals where {request.draft_len} may be")
            by_row[request.row] = answer if answer.ids else NOTHING
        return by_row


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
    session: Session, draft_len: int, purpose: Purpose = Purpose.CHOICE
) -> DraftRequest:
    """What the drafter needs to know of a session."""
    return DraftRequest(
        row=session.row,
        position=session.last_position,
        token=session.tokens[-1],
        draft_len=draft_len,
        params=session.request.sampling,
        rules=session.rules,
        purpose=purpose,
    )
