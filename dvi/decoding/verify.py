"""One target pass over all proposals and prompt chunks, and the prefixes the target agrees to.

Owns the verify pass; does not know stop rules, and decides nothing that a draft could change.
Letters: N positions of the pass, R positions of rounds (they come first), K proposals of a session.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dvi.acceptance import accept_prefix
from dvi.decoding.propose import Proposer
from dvi.decoding.scheduler import Batch, PrefillChunk
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Phase
from dvi.decoding.verdict import Verdict
from dvi.drafting import Proposal
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.sampling import ChoicePoint, choose


class Verifier:
    """Runs the target for the engine. Decode thread only."""

    def __init__(
        self, target: TargetModel, proposer: Proposer, cache: KvCache, ledger: Ledger
    ) -> None:
        self._target = target
        self._proposer = proposer
        self._cache = cache
        self._ledger = ledger

    def verify(self, batch: Batch, proposals: Sequence[Proposal]) -> list[Verdict]:
        """The target's verdict on each round of the batch; also forwards the prompt chunks.

        The token at every position is the target's own choice given the tokens before it, so an
        accepted proposal is accepted because it equals it.
        """
        rounds = [
            round_segment(session, proposal)
            for session, proposal in zip(batch.rounds, proposals, strict=True)
        ]
        prefills = [prefill_segment(chunk) for chunk in batch.prefills]
        if not rounds and not prefills:
            return []
        hidden = self._forward(batch, rounds + prefills)
        num_round_positions = sum(len(segment.ids) for segment in rounds)
        verdicts: list[Verdict] = []
        if rounds:
            logits = self._target.logits(hidden[:num_round_positions])  # [R, V]
            verdicts = judge(batch.rounds, proposals, logits)
        num_positions = num_round_positions + batch.num_prefill_tokens
        self._ledger.lap(Phase.VERIFY, share=num_round_positions / num_positions)
        return verdicts

    def _forward(self, batch: Batch, segments: Sequence[Segment]) -> Tensor:
        """Last hidden states of all positions that are no padding, in order of segments."""
        plan = self._target.plan(segments)
        hidden = self._target.shallow(plan, self._cache)
        members = [*batch.rounds, *(chunk.session for chunk in batch.prefills)]
        self._proposer.observe(hidden, plan, members)
        return plan.take(self._target.deep(hidden, plan, self._cache))


def round_segment(session: Session, proposal: Proposal) -> Segment:
    """The last committed token and the proposals after it."""
    ids = (session.tokens[-1], *proposal.ids)
    return Segment(session.row, session.last_position, ids)


def prefill_segment(chunk: PrefillChunk) -> Segment:
    """The next prompt tokens of a session."""
    start = chunk.session.num_cached
    ids = tuple(chunk.session.tokens[start : start + chunk.num_tokens])
    return Segment(chunk.session.row, start, ids)


def judge(
    sessions: Sequence[Session], proposals: Sequence[Proposal], logits: Tensor
) -> list[Verdict]:
    """Compare every proposal with the target's choices; ``logits`` [R, V] in order of sessions.

    Row i of a session's K + 1 chooses the token at ``last_position + 1 + i``.
    """
    points = [
        ChoicePoint(session.request.sampling, session.last_position + 1 + i)
        for session, proposal in zip(sessions, proposals, strict=True)
        for i in range(len(proposal.ids) + 1)
    ]
    choices = choose(logits, points)
    verdicts = []
    first = 0
    for proposal in proposals:
        width = len(proposal.ids) + 1
        chosen = choices[first : first + width]
        num_accepted = accept_prefix(proposal.ids, chosen)
        rows = logits[first : first + num_accepted + 1]
        verdicts.append(Verdict(proposal, num_accepted, tuple(chosen[: num_accepted + 1]), rows))
        first += width
    return verdicts
