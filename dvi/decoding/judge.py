"""Which proposals the target agrees to, and the token it puts after them.

Owns the two verification modes behind one walk; does not know stop rules or how logits were made.
``coupled``: the token at every position is the target's own choice given the tokens before it, and
a proposal is accepted because it equals it: nothing here depends on the draft. ``rejection``: a
proposal is kept with min(1, p / q), so answers follow the target's distribution only.
Letters: R positions of rounds, K proposals of a session, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain

from torch import Tensor

from dvi.acceptance import accept_prefix
from dvi.decoding.session import Session
from dvi.decoding.verdict import Verdict
from dvi.drafting import Proposal
from dvi.sampling.choice import ChoicePoint, choose, choose_row, host_rows
from dvi.sampling.filters import Logits
from dvi.sampling.rejection import choose_or_accept
from dvi.types import Verification


def judge(
    sessions: Sequence[Session],
    proposals: Sequence[Proposal],
    logits: Tensor,
    verification: Verification = Verification.COUPLED,
) -> list[Verdict]:
    """Compare every proposal with the target; raw ``logits`` [R, V] in order of sessions.

    Row i of a session's K + 1 chooses the token at ``last_position + 1 + i``. Where raw logits
    decide by themselves, all rows are chosen from in one go, else every session walks its own,
    position by position up to the first that differs.
    """
    points = [_points(one, proposal) for one, proposal in zip(sessions, proposals, strict=True)]
    ends = list(accumulate(map(len, points)))
    blocks = [slice(end - len(own), end) for end, own in zip(ends, points, strict=True)]
    if verification is Verification.COUPLED and all(one.rules is None for one in sessions):
        tokens = choose(logits, list(chain.from_iterable(points)))
        chosen = [tokens[rows] for rows in blocks]
    else:
        host = host_rows(logits)
        decide = choose_or_accept if verification is Verification.REJECTION else choose_alike
        chosen = [
            walk_block(session, proposal, host[rows], decide)
            for session, proposal, rows in zip(sessions, proposals, blocks, strict=True)
        ]
    return [
        _verdict(proposal, tokens, logits[rows])
        for proposal, tokens, rows in zip(proposals, chosen, blocks, strict=True)
    ]


def choose_alike(
    row: Logits,
    point: ChoicePoint,
    proposed: int,  # noqa: ARG001
    draft_row: Logits | None,  # noqa: ARG001
) -> int:
    """The coupled rule: the target chooses as if nobody had proposed."""
    return choose_row(row, point)


def walk_block(
    session: Session, proposal: Proposal, rows: Logits, decide: Callable[..., int]
) -> list[int]:
    """The target's tokens, one a position up to the first that differs from the proposal.

    ``rows`` [K + 1, V], raw and left as they are. Position i sees the proposals before it in the
    block. One token fewer where the answer is complete with an accepted proposal.
    """
    rules = session.rules
    draft_rows = None if proposal.draft_logits is None else host_rows(proposal.draft_logits)
    chosen: list[int] = []
    for place, (raw, point) in enumerate(zip(rows, _points(session, proposal), strict=True)):
        row = raw if rules is None else raw.copy()
        if rules is not None and not rules.apply(row):
            break
        if place == len(proposal.ids):
            chosen.append(choose_row(row, point))
            break
        proposed = proposal.ids[place]
        draft_row = None if draft_rows is None else draft_rows[place]
        chosen.append(decide(row, point, proposed, draft_row))
        if chosen[-1] != proposed or (rules is not None and not rules.advance(proposed)):
            break
    if rules is not None:
        rules.settle()
    return chosen


def _points(session: Session, proposal: Proposal) -> list[ChoicePoint]:
    start = session.last_position + 1
    return [
        ChoicePoint(session.request.sampling, start + place)
        for place in range(len(proposal.ids) + 1)
    ]


def _verdict(proposal: Proposal, chosen: Sequence[int], logits: Tensor) -> Verdict:
    num_accepted = accept_prefix(proposal.ids, chosen)
    committed = tuple(chosen[: num_accepted + 1])
    return Verdict(proposal, num_accepted, committed, logits[: len(committed)])
