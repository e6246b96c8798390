"""Value types that cross rooms: what a request asks, what a round did, what a trace keeps.

Owns names and invariants only; knows neither torch nor where a value is stored.
Letters: T output tokens of one choice, M = 64 kept target ids of a position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Source(StrEnum):
    """Who proposed a committed token; ``target`` is the verifier's own choice."""

    NEURAL = "neural"
    MEMORY = "memory"
    TARGET = "target"


class FinishReason(StrEnum):
    """Why a request ended; ``stop`` and ``length`` are OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Verification(StrEnum):
    """How the target decides about proposals (``decoding.verification``)."""

    COUPLED = "coupled"
    REJECTION = "rejection"


# Between a client's request id, which has no space, and what tells its parts apart: the key it came
# with where there are several, the prompt where it has several.
ID_PART_MARK = " "


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Everything but the prompt and the target that decides the tokens of one choice."""

    max_tokens: int  # >= 1, or 0 where only the prompt's log-probabilities are wanted
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all ids
    top_p: float = 1.0  # 1 keeps all ids
    min_p: float = 0.0  # 0 keeps all ids
    seed: int = 0  # unsigned 64 bits
    choice_index: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    end_token_ids: tuple[int, ...] = ()  # the model's own end tokens; inert with ignore_eos
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    presence_penalty: float = 0.0  # 0 is off; over the output so far
    frequency_penalty: float = 0.0  # 0 is off; over the output so far
    repetition_penalty: float = 1.0  # > 0, 1 is off; over prompt and output so far
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, added logit), each id once
    min_tokens: int = 0  # no end token and no stop token id before so many output tokens
    logprobs: int | None = None  # top alternatives a token; 0: only the token's own; None: none
    prompt_logprobs: int | None = None  # the same for the prompt: needs a pass over all of it
    grammar: str | None = None  # llguidance grammar in the serialized form that LLMatcher takes


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Raw log-probability of a token under the target: before temperature, penalties and masks."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # likeliest (id, logprob), descending; as many as asked for


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One choice of one request, as the engine takes it."""

    request_id: str
    prompt_ids: tuple[int, ...]  # at least one token
    sampling: SamplingParams
    speculation: bool = True
    max_draft_len: int | None = None  # None: the engine's own limit
    log: bool = True  # False: neither stored nor learned from
    domain: str = ""
    user_hash: str = ""
    arrived_s: float = 0.0  # monotonic clock
    deadline_s: float | None = None  # monotonic clock; then CANCELLED with error "timeout"
    prediction_ids: tuple[int, ...] = ()  # what the client expects to read; proposals only
    scope: str = ""  # who may share memory and prefixes with whom
    tenant: str = ""  # who waits in turn with whom: of several keys each is one; "": all alike


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify-commit cycle, cut at the request's end.

    Invariants: ``num_accepted <= len(proposed_ids) <= num_accepted + 1`` (nothing after the first
    reject); the round committed ``num_accepted + 1`` tokens.
    """

    source: Source  # TARGET when nothing was proposed
    adapter_version: int
    proposed_ids: tuple[int, ...]  # judged proposals only: accepted ones and the first reject
    draft_logprobs: tuple[float, ...]  # raw, at T = 1; empty unless source is NEURAL
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Trace:
    """What the replay store keeps of one choice (ARCHITECTURE: the replay unit)."""

    request_id: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]  # T committed tokens
    sampling: SamplingParams
    finish_reason: FinishReason
    system_fingerprint: str
    top_ids: NDArray[np.int32]  # [T, M], ids of the largest raw target logits, descending
    top_logits: NDArray[np.float32]  # [T, M], before temperature, penalties and masks
    logsumexp: NDArray[np.float32]  # [T], over the whole vocabulary
    rounds: tuple[Round, ...]
    domain: str = ""
    user_hash: str = ""
    created_s: float = 0.0  # Unix time


@dataclass(slots=True)
class AcceptanceCounts:
    """Counts of one stretch of decoding; a request owns one, the engine owns one.

    generated = rounds + accepted. ``judged`` = accepted + first rejects; ``proposed`` counts only
    proposals up to the cut of a finished request.
    """

    rounds: int = 0
    proposed: int = 0
    judged: int = 0
    accepted: int = 0
    by_source: dict[Source, AcceptanceCounts] = field(default_factory=dict)

    def acceptance_rate(self) -> float | None:
        """accepted / judged, or None when nothing was judged."""
        return self.accepted / self.judged if self.judged else None

    def draft_efficiency(self) -> float | None:
        """accepted / proposed, or None when nothing was proposed."""
        return self.accepted / self.proposed if self.proposed else None

    def mean_accepted_length(self) -> float | None:
        """Committed tokens a round, the target's own token included; None before a round."""
        return 1 + self.accepted / self.rounds if self.rounds else None

    def add_round(self, source: Source, proposed: int, judged: int, accepted: int) -> None:
        """Count one round; a round without proposals has source TARGET and three zeros."""
        assert 0 <= accepted <= judged <= proposed
        self.rounds += 1
        self.proposed += proposed
        self.judged += judged
        self.accepted += accepted
        if source is not Source.TARGET:
            own = self.by_source.setdefault(source, AcceptanceCounts())
            own.rounds += 1
            own.proposed += proposed
            own.judged += judged
            own.accepted += accepted

    def add(self, other: AcceptanceCounts) -> None:
        """Count another stretch as well, source by source."""
        self.rounds += other.rounds
        self.proposed += other.proposed
        self.judged += other.judged
        self.accepted += other.accepted
        for source, own in other.by_source.items():
            self.by_source.setdefault(source, AcceptanceCounts()).add(own)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round adds to one request's answer; the last one carries ``finish_reason``."""

    request_id: str
    choice_index: int
    token_ids: tuple[int, ...]
    sources: tuple[Source, ...]  # one a token
    text: str  # may be shorter than the tokens: held back while a stop or a character is undecided
    finish_reason: FinishReason | None = None
    counts: AcceptanceCounts | None = None  # with finish_reason
    adapter_versions: tuple[int, int] = (0, 0)  # first and last version that drafted
    error: str | None = None  # with FinishReason.FAILED, or "timeout" with CANCELLED
    logprobs: tuple[TokenLogprob, ...] = ()  # one a token, where asked for
    # In the first delta of a request that asked: one a prompt token, None for the first.
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    num_reused: int = 0  # prompt tokens that a shared prefix spared; with finish_reason
