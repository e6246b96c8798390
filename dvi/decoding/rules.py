"""Everything that stands between raw logits and the choice rule, at every position of a block.

Owns the order (bias, penalties, min_tokens, grammar) and the walk over proposals; does not know
who proposed, and the choice is made elsewhere.
Letters: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dvi.decoding.grammar import GrammarCompiler, GrammarMatcher
from dvi.sampling.filters import Logits
from dvi.sampling.processors import Processors, asks_for_processing
from dvi.types import SamplingParams, Source


class TokenRules:
    """The rules of one session, standing after its committed tokens or some proposals further on.

    Draft and target are treated alike: position i of a block sees the tokens before it in the same
    block, each once. ``settle`` goes back to the committed tokens. Decode thread only.
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], matcher: GrammarMatcher | None
    ) -> None:
        self._processors = Processors(params, prompt_ids)
        self._matcher = matcher
        ends = () if params.ignore_eos else params.end_token_ids
        self._end_ids = np.array(ends, np.int64)
        self._ahead: list[int] = []

    def apply(self, row: Logits) -> bool:
        """Turn raw logits ``row`` [V] into processed ones, in place.

        False where no token can stand here: the answer is complete before it. A grammar wins
        against min_tokens, else nothing could be said once it wants the answer to end.
        """
        self._processors.adjust(row)
        too_early = self._processors.forbidden_ends()
        if self._matcher is None:
            row[too_early] = -math.inf
            return True
        kept = row[too_early].copy()
        row[too_early] = -math.inf
        self._mask(row, self._matcher)
        if too_early.size and row.max() == -math.inf:
            row[too_early] = kept
            self._mask(row, self._matcher)
        return bool(row.max() > -math.inf)

    def advance(self, token_id: int) -> bool:
        """Walk ahead over a proposal; False, and no step, where the grammar forbids it."""
        if self._matcher is not None:
            allowed = self._matcher.allowed()
            if allowed is None or token_id >= allowed.size or not allowed[token_id]:
                return False
            self._matcher.advance(token_id)
        self._processors.push(token_id)
        self._ahead.append(token_id)
        return True

    def settle(self) -> None:
        """Back to the committed tokens."""
        while self._ahead:
            self._processors.pop(self._ahead.pop())
        if self._matcher is not None:
            self._matcher.settle()

    def commit(self, token_id: int) -> None:
        """One more token of the answer, not an end token."""
        self.settle()
        self._processors.push(token_id)
        if self._matcher is not None:
            self._matcher.commit(token_id)

    def num_allowed(self, proposed_ids: Sequence[int], source: Source) -> int:
        """How many of the proposals a grammar lets stand, from the first on.

        A neural draft was masked already. What another source proposes is cut at the first
        forbidden token, as none after it can be accepted.
        """
        if self._matcher is None or source is Source.NEURAL:
            return len(proposed_ids)
        num = 0
        while num < len(proposed_ids) and self._may_stand(proposed_ids[num]):
            num += 1
            if not self.advance(proposed_ids[num - 1]):  # an end token: nothing follows it
                break
        self.settle()
        return num

    def is_complete(self) -> bool:
        """Whether a grammar has come to its end: nothing but an end token could follow."""
        return self._has_no_next() and self._matcher is not None and self._matcher.may_end()

    def error(self) -> str | None:
        """Why the answer cannot go on; None while it can."""
        if self._matcher is None:
            return None
        if self._matcher.allowed() is None:
            return "the grammar could not be followed further"
        if self._has_no_next() and not self._matcher.may_end():
            return "no token can go on with this grammar"
        return None

    def _has_no_next(self) -> bool:
        """Whether the grammar allows no token of text."""
        allowed = None if self._matcher is None else self._matcher.allowed()
        return allowed is not None and not allowed.any()

    def _may_stand(self, token_id: int) -> bool:
        assert self._matcher is not None
        if token_id in self._end_ids:
            return self._matcher.may_end()
        allowed = self._matcher.allowed()
        return allowed is not None and token_id < allowed.size and bool(allowed[token_id])

    def _mask(self, row: Logits, matcher: GrammarMatcher) -> None:
        allowed = matcher.allowed()
        if allowed is None:  # the walk is cut by ``error`` before this row counts
            return
        ends = row[self._end_ids].copy()
        size = min(row.size, allowed.size)
        np.copyto(row[:size], -math.inf, where=~allowed[:size])
        row[size:] = -math.inf
        if matcher.may_end():
            row[self._end_ids] = ends


def make_rules(
    params: SamplingParams, prompt_ids: Sequence[int], grammars: GrammarCompiler | None
) -> TokenRules | None:
    """The rules of a request; None where no field of it asks for any.

    Raises GrammarRefused for a grammar that cannot be compiled.
    """
    if params.grammar is not None:
        assert grammars is not None  # Engine.check_grammar has refused it
        return TokenRules(params, prompt_ids, grammars.open(params.grammar, params.end_token_ids))
    return TokenRules(params, prompt_ids, None) if asks_for_processing(params) else None
