"""Decoding a list of requests to the end, inline, for whoever needs answers and no server.

Owns the collecting of deltas; does not know threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dvi.decoding.engine import Engine
from dvi.decoding.inbox import QueueFull
from dvi.types import AcceptanceCounts, DecodeRequest, Delta, FinishReason, Source, TokenLogprob


@dataclass(frozen=True, slots=True)
class Result:
    """One whole answer."""

    request_id: str
    choice_index: int
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]  # one a token
    text: str
    finish_reason: FinishReason
    counts: AcceptanceCounts
    adapter_versions: tuple[int, int]
    error: str | None
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token, where asked for
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    num_reused: int = 0  # prompt tokens that a shared prefix spared


def decode_batch(engine: Engine, requests: Sequence[DecodeRequest]) -> list[Result]:
    """Run all requests to the end and return their answers in order.

    Nobody else may drive the engine meanwhile. Requests beyond its queue wait here. A fault of the
    target is raised, not turned into a failed answer.
    """
    received: list[list[Delta]] = [[] for _ in requests]
    num_submitted = 0
    while True:
        while num_submitted < len(requests):
            try:
                engine.submit(requests[num_submitted], received[num_submitted].append)
            except QueueFull:
                break
            num_submitted += 1
        if not engine.step().worked and num_submitted == len(requests):
            return [join_deltas(deltas) for deltas in received]


def join_deltas(deltas: Sequence[Delta]) -> Result:
    """The answer that a complete series of deltas of one choice makes."""
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.counts is not None
    return Result(
        request_id=last.request_id,
        choice_index=last.choice_index,
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        sources=tuple(source for delta in deltas for source in delta.sources),
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason,
        counts=last.counts,
        adapter_versions=last.adapter_versions,
        error=last.error,
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt_logprobs=next(
            (one.prompt_logprobs for one in deltas if one.prompt_logprobs is not None), None
        ),
        num_reused=last.num_reused,
    )
