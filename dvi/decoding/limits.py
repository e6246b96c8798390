"""Sizes of one engine.

Owns the arithmetic of rows; does not know what is stored in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dvi.config import DecodingConfig, ServingConfig
from dvi.sampling.processors import check_processors
from dvi.types import DecodeRequest

# Deterministic passes pad a segment to this many positions (ARCHITECTURE, fact 7), past its length.
CANONICAL_WIDTH = 5


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Counts are choices, lengths are tokens."""

    num_rows: int
    max_queue: int
    max_context_len: int  # prompt and answer together
    max_draft_len: int
    prefill_chunk_len: int = 256  # prompt tokens a step while no row is in a round
    shared_prefill_chunk_len: int = 64  # prompt tokens a step beside rounds
    top_ids: int = 64  # M, target logits kept a committed position of a logged request

    @property
    def row_len(self) -> int:
        """Positions a cache row needs: the context, and the widest round behind it.

        The last one is never read: a round begins before the context's last token.
        """
        return self.max_context_len + max(self.max_draft_len + 1, CANONICAL_WIDTH)

    def check(self, request: DecodeRequest, num_token_ids: int) -> None:
        """Raise ValueError where the request cannot run whatever the traffic."""
        prompt_len = len(request.prompt_ids)
        if not 1 <= prompt_len < self.max_context_len:
            raise ValueError(
                f"prompt has {prompt_len} tokens; allowed: 1 to {self.max_context_len - 1}"
            )
        sampling = request.sampling
        least = 1 if sampling.prompt_logprobs is None else 0
        if sampling.max_tokens < least:
            raise ValueError(f"max_tokens is {sampling.max_tokens}; allowed: {least} or more")
        for name, num_top in (
            ("logprobs", sampling.logprobs),
            ("prompt_logprobs", sampling.prompt_logprobs),
        ):
            if num_top is not None and num_top < 0:
                raise ValueError(f"{name} is {num_top}; allowed: 0 or more")
        check_processors(sampling, num_token_ids)
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= num_token_ids:
            raise ValueError(f"prompt has a token id outside 0 to {num_token_ids - 1}")
        if request.max_draft_len is not None and not (
            0 <= request.max_draft_len <= self.max_draft_len
        ):
            raise ValueError(
                f"max_draft_len is {request.max_draft_len}; allowed: 0 to {self.max_draft_len}"
            )
        if any(not stop for stop in request.sampling.stop):
            raise ValueError("stop has an empty string; allowed: one character or more")


def limits_from_config(
    decoding: DecodingConfig, serving: ServingConfig, top_ids: int
) -> EngineLimits:
    """The engine's sizes as the config gives them."""
    return EngineLimits(
        num_rows=serving.max_batch_size,
        max_queue=serving.max_queue,
        max_context_len=serving.max_context_len,
        max_draft_len=decoding.max_draft_len,
        prefill_chunk_len=decoding.prefill_chunk_len,
        shared_prefill_chunk_len=decoding.shared_prefill_chunk_len,
        top_ids=top_ids,
    )
