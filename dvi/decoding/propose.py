"""Asking the drafter, and living without it where it fails.

Owns the fault boundary around everything that only speeds decoding up; does not know the target's
choice. A fault here costs acceptance, never an answer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torch import Tensor

from dvi.decoding.faults import FAULTS
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Phase
from dvi.drafting import Drafter, DraftRequest, Proposal
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan
from dvi.types import Source

logger = logging.getLogger(__name__)

NOTHING = Proposal(ids=(), logprobs=(), source=Source.TARGET, adapter_version=0)


class Proposer:
    """The drafter as the engine sees it. Decode thread only.

    A fault ends speculation for the sessions it touched: their draft state may lack positions.
    """

    def __init__(self, drafter: Drafter, cache: KvCache, ledger: Ledger) -> None:
        self._drafter = drafter
        self._cache = cache  # the target's; draft steps write shallow layers past each row's length
        self._ledger = ledger

    def propose(self, sessions: Sequence[Session], draft_lens: Sequence[int]) -> list[Proposal]:
        """One proposal a session, of at most its draft length; empty ones where that is 0."""
        drafting = [one for one, length in zip(sessions, draft_lens, strict=True) if length]
        proposals = dict.fromkeys((one.row for one in sessions), NOTHING)
        if drafting:
            requests = [
                make_draft_request(one, length)
                for one, length in zip(sessions, draft_lens, strict=True)
                if length
            ]
            try:
                proposals.update(self._ask(requests))
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


def make_draft_request(session: Session, draft_len: int) -> DraftRequest:
    """What the drafter needs to know of a session."""
    return DraftRequest(
        row=session.row,
        position=session.last_position,
        token=session.tokens[-1],
        draft_len=draft_len,
        params=session.request.sampling,
    )
