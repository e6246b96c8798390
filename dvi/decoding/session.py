"""One choice of one request on one row: its tokens, stop rules, text, counts.

Owns the token list and everything that ends it; does not know the target, the cache's content or
other sessions. A session is touched by the decode thread only.
Letters: t absolute position of the last committed token.
"""

from __future__ import annotations

from collections.abc import Sequence

from dvi.decoding.rules import TokenRules
from dvi.decoding.text import StopText, TextDecoder
from dvi.decoding.verdict import Commit, Verdict
from dvi.sampling.logprobs import token_logprobs
from dvi.types import (
    AcceptanceCounts,
    DecodeRequest,
    Delta,
    FinishReason,
    Round,
    Source,
    TokenLogprob,
)


class Session:
    """Invariant at a round boundary after prefill: the caches hold all ``tokens`` but the last.

    Rollback is arithmetic: what a rejected proposal wrote lies at or past ``num_cached`` and the
    next pass overwrites it.
    """

    def __init__(
        self,
        request: DecodeRequest,
        row: int,
        max_context_len: int,
        decoder: TextDecoder,
        rules: TokenRules | None = None,
    ) -> None:
        self.request = request
        self.row = row
        self.tokens = list(request.prompt_ids)  # prompt + output
        self.num_cached = 0  # positions [0, num_cached) of the row are written and valid
        self.num_reused = 0  # of them, those that another row's pass computed
        self.counts = AcceptanceCounts()
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None  # why it cannot go on; whoever schedules ends it
        self.rules = rules  # None: raw logits decide
        self.adapter_versions: tuple[int, int] | None = None  # first and last that drafted
        self.may_draft = request.speculation
        self.is_whole = True  # False: a fault may have left gaps in the draft's state of the row
        self._max_len = min(len(request.prompt_ids) + request.sampling.max_tokens, max_context_len)
        self._decoder = decoder
        sampling = request.sampling
        self._text = StopText(sampling.stop, include_stop=sampling.include_stop_str_in_output)
        self._end_ids = frozenset(() if sampling.ignore_eos else sampling.end_token_ids)
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._prompt_logprobs: list[TokenLogprob | None] = [None]  # until they are delivered

    @property
    def last_position(self) -> int:
        """t, where the next round starts."""
        return len(self.tokens) - 1

    @property
    def num_generated(self) -> int:
        """Committed output tokens."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def num_prefill(self) -> int:
        """Prompt tokens that still need a forward pass before the first round."""
        return max(len(self.request.prompt_ids) - 1 - self.num_cached, 0)

    @property
    def reads_only(self) -> bool:
        """Whether nothing may be generated: the request ends once its prompt is read."""
        return self._max_len <= len(self.request.prompt_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether every prompt position has to pass the target's head."""
        return self.request.sampling.prompt_logprobs is not None

    @property
    def max_proposals(self) -> int:
        """Most proposals the next round can use: one committed token is the target's own."""
        if not self.may_draft:
            return 0
        remaining = self._max_len - len(self.tokens) - 1
        limit = self.request.max_draft_len
        return max(remaining if limit is None else min(remaining, limit), 0)

    def commit(self, verdict: Verdict) -> Commit:
        """Take the verdict token by token up to a stop rule or limit; the rest never existed."""
        assert self.finish_reason is None
        start = len(self.tokens)
        for token_id in verdict.committed_ids:
            self.tokens.append(token_id)
            self.finish_reason = self._reason_to_end(token_id)
            if self.finish_reason is not None or self.error is not None:
                break
        self._close_text()
        kept = tuple(self.tokens[start:])
        self.num_cached = len(self.tokens) - 1
        return self._count(verdict, kept)

    def reuse(self, end: int) -> None:
        """Positions up to ``end`` of the row hold this prompt's keys and values already.

        At most up to the last prompt token, whose logits choose the first of the answer.
        """
        assert self.num_cached <= end < len(self.request.prompt_ids)
        self.num_reused += end - self.num_cached
        self.num_cached = end

    def lose_draft(self) -> None:
        """A drafter's fault: no more proposals, and nobody may take the row's draft state over."""
        self.may_draft = False
        self.is_whole = False

    def add_prompt_logprobs(self, entries: Sequence[TokenLogprob]) -> None:
        """Those of the next prompt tokens, chunk by chunk; the first token has none."""
        self._prompt_logprobs.extend(entries)

    def end(self, reason: FinishReason, error: str | None = None) -> Delta:
        """End the request from outside (cancelled, failed); text held back is not shown."""
        self.finish_reason = reason
        return self._delta((), (), error)

    def _reason_to_end(self, token_id: int) -> FinishReason | None:
        """Apply stop rules, grammar and limit to the newest token, feeding its text."""
        if token_id in self._end_ids:
            return FinishReason.STOP  # an end token counts, and has no text
        is_stop_id = token_id in self._stop_ids
        is_shown = not is_stop_id or self.request.sampling.include_stop_str_in_output
        if is_shown and self._push_text(self._decoder.push(token_id)):
            return FinishReason.STOP
        if is_stop_id or self._completes(token_id):
            return FinishReason.STOP
        if len(self.tokens) >= self._max_len:
            return FinishReason.LENGTH
        self.error = self.rules.error() if self.rules is not None else None
        return None

    def _completes(self, token_id: int) -> bool:
        """Tell the rules; True when a grammar lets nothing follow this token."""
        if self.rules is None:
            return False
        self.rules.commit(token_id)
        return self.rules.is_complete()

    def _push_text(self, text: str) -> bool:
        """Show text; True when it completed a stop string, which min_tokens puts off."""
        if self.num_generated <= self.request.sampling.min_tokens:
            self._text.push_early(text)
            return False
        return self._text.push(text)

    def _close_text(self) -> None:
        """Show what was held back once the answer has ended without a stop string."""
        if self.finish_reason is None or self._text.stopped:
            return
        if self._push_text(self._decoder.flush()):
            self.finish_reason = FinishReason.STOP
        else:
            self._text.finish()

    def _count(self, verdict: Verdict, kept: tuple[int, ...]) -> Commit:
        """Cut the round to what was kept and count it.

        The last kept token counts as the target's own. Of a round that ended the request only the
        proposals whose fate was needed are counted: the accepted ones and a reject at the last kept
        token.
        """
        proposal = verdict.proposal
        num_accepted = len(kept) - 1
        rejected = num_accepted == verdict.num_accepted and num_accepted < len(proposal.ids)
        num_judged = num_accepted + rejected
        num_proposed = len(proposal.ids) if self.finish_reason is None else num_judged
        source = proposal.source if num_proposed else Source.TARGET
        neural = source is Source.NEURAL
        if neural:
            first, _ = self.adapter_versions or (proposal.adapter_version, 0)
            self.adapter_versions = (first, proposal.adapter_version)
        self.counts.add_round(source, num_proposed, num_judged, num_accepted)
        round_ = Round(
            source=source,
            adapter_version=proposal.adapter_version,
            proposed_ids=proposal.ids[:num_judged],
            draft_logprobs=proposal.logprobs[:num_judged] if neural else (),
            num_accepted=num_accepted,
        )
        sources = (source,) * num_accepted + (Source.TARGET,)
        delta = self._delta(kept, sources, logprobs=self._logprobs(verdict, kept))
        return Commit(delta, round_, num_proposed)

    def _logprobs(self, verdict: Verdict, kept: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        """Of the kept tokens, where asked for."""
        num_top = self.request.sampling.logprobs
        if num_top is None:
            return ()
        return token_logprobs(verdict.logits[: len(kept)], kept, num_top)

    def _take_prompt_logprobs(self) -> tuple[TokenLogprob | None, ...] | None:
        """All of them, once."""
        entries = self._prompt_logprobs
        if not self.wants_prompt_logprobs or len(entries) != len(self.request.prompt_ids):
            return None
        self._prompt_logprobs = []
        return tuple(entries)

    def _delta(
        self,
        token_ids: tuple[int, ...],
        sources: tuple[Source, ...],
        error: str | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> Delta:
        return Delta(
            request_id=self.request.request_id,
            choice_index=self.request.sampling.choice_index,
            token_ids=token_ids,
            sources=sources,
            text=self._text.take(),
            finish_reason=self.finish_reason,
            counts=self.counts if self.finish_reason is not None else None,
            adapter_versions=self.adapter_versions or (0, 0),
            error=error,
            logprobs=logprobs,
            num_reused=self.num_reused if self.finish_reason is not None else 0,
            prompt_logprobs=self._take_prompt_logprobs(),
        )
