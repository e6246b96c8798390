"""One target pass over all proposals and prompt chunks.

Owns the verify pass; does not know stop rules, nor how the target's logits decide.
Letters: N positions of the pass, R positions of rounds (they come first), K proposals of a session.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dvi.decoding.judge import judge
from dvi.decoding.propose import Proposer
from dvi.decoding.scheduler import Batch, PrefillChunk
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Phase
from dvi.decoding.verdict import Verdict
from dvi.drafting import Proposal
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Planner, Segment
from dvi.modeling.target import TargetModel
from dvi.sampling.logprobs import token_logprobs
from dvi.types import Verification

HEAD_ROWS = 32  # prompt positions a head product: 6 MB of logits for 49,152 ids


class Verifier:
    """Runs the target for the engine. Decode thread only."""

    def __init__(
        self,
        target: TargetModel,
        proposer: Proposer,
        cache: KvCache,
        ledger: Ledger,
        verification: Verification = Verification.COUPLED,
        *,
        plans: Planner | None = None,  # None: the target
    ) -> None:
        self._verification = verification
        self._plans = plans or target
        self._target = target
        self._proposer = proposer
        self._cache = cache
        self._ledger = ledger

    def verify(self, batch: Batch, proposals: Sequence[Proposal]) -> list[Verdict]:
        """The target's verdict on each round of the batch; also forwards the prompt chunks."""
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
            verdicts = judge(batch.rounds, proposals, logits, self._verification)
        self._read_prompts(batch.prefills, hidden[num_round_positions:])
        num_positions = num_round_positions + batch.num_prefill_tokens
        self._ledger.lap(Phase.VERIFY, share=num_round_positions / num_positions)
        return verdicts

    def _forward(self, batch: Batch, segments: Sequence[Segment]) -> Tensor:
        """Last hidden states of all positions, in order of segments."""
        plan = self._plans.plan(segments)
        hidden = self._target.shallow(plan, self._cache)
        members = [*batch.rounds, *(chunk.session for chunk in batch.prefills)]
        self._proposer.observe(hidden, plan, members)
        return plan.real(self._target.deep(hidden, plan, self._cache))

    def _read_prompts(self, chunks: Sequence[PrefillChunk], hidden: Tensor) -> None:
        """Log-probabilities of prompt tokens, where asked for, from the chunks' states [N, H].

        The head is applied to a few positions at a time: its rows are the vocabulary wide.
        """
        first = 0
        for chunk in chunks:
            session = chunk.session
            num_top = session.request.sampling.prompt_logprobs
            if num_top is not None:
                following = session.num_cached + 1  # the token that the first position predicts
                for start in range(0, chunk.num_tokens, HEAD_ROWS):
                    end = min(start + HEAD_ROWS, chunk.num_tokens)
                    logits = self._target.logits(hidden[first + start : first + end])
                    ids = session.tokens[following + start : following + end]
                    session.add_prompt_logprobs(token_logprobs(logits, ids, num_top))
            first += chunk.num_tokens


def round_segment(session: Session, proposal: Proposal) -> Segment:
    """The last committed token and the proposals after it."""
    ids = (session.tokens[-1], *proposal.ids)
    return Segment(session.row, session.last_position, ids)


def prefill_segment(chunk: PrefillChunk) -> Segment:
    """The next prompt tokens of a session."""
    start = chunk.session.num_cached
    ids = tuple(chunk.session.tokens[start : start + chunk.num_tokens])
    return Segment(chunk.session.row, start, ids)
