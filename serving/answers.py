"""What goes back to the client: OpenAI's objects for both routes, with the ``dvi`` extension.

Owns the shape of every answer object; knows neither HTTP nor the engine. Plain dicts: they go
straight into JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dvi.types import AcceptanceCounts, DecodeRequest, Delta, FinishReason, Source
from serving.logprobs import LogprobWriter, join_chat, join_completion
from serving.message import MessageWriter, join_message
from serving.plan import Plan

Json = dict[str, Any]
REPORTED_SOURCES = (Source.NEURAL, Source.MEMORY)
MAX_LISTED = 256  # ignored keys that an answer lists; all of them are counted


@dataclass(slots=True)
class ChoiceAnswer:
    """What one choice delivered so far."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)
    last: Delta | None = None  # the delta with the finish reason

    def add(self, delta: Delta) -> None:
        """Append one delta."""
        self.deltas.append(delta)
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.sources += delta.sources
        if delta.finish_reason is not None:
            self.last = delta


def _rates(counts: AcceptanceCounts) -> Json:
    return {
        "rounds": counts.rounds,
        "proposed": counts.proposed,
        "judged": counts.judged,
        "accepted": counts.accepted,
        "acceptance_rate": counts.acceptance_rate(),
        "draft_efficiency": counts.draft_efficiency(),
        "mean_accepted_length": counts.mean_accepted_length(),
    }


def sum_counts(parts: Iterable[AcceptanceCounts]) -> AcceptanceCounts:
    """Counts over all choices of a request, the sources too."""
    total = AcceptanceCounts(by_source={source: AcceptanceCounts() for source in REPORTED_SOURCES})
    for part in parts:
        total.add(part)
    return total


def dvi_object(plan: Plan, choices: Sequence[ChoiceAnswer]) -> Json:
    """The response extension: sums over all choices."""
    ends = [choice.last for choice in choices if choice.last is not None]
    total = sum_counts(end.counts for end in ends if end.counts is not None)
    versions = [end.adapter_versions for end in ends] or [(0, 0)]
    return {
        **_rates(total),
        "by_source": {source.value: _rates(own) for source, own in total.by_source.items()},
        "adapter_versions": [
            min(first for first, _ in versions),
            max(last for _, last in versions),
        ],
        "seed": plan.seed,
        "ignored_fields": list(plan.ignored_fields[:MAX_LISTED]),
    }


def usage_object(plan: Plan, choices: Sequence[ChoiceAnswer]) -> Json:
    """Tokens read and made; an end token and a stop string's tokens count."""
    prompt_tokens = plan.num_prompt_tokens()
    completion_tokens = sum(len(choice.token_ids) for choice in choices)
    usage: Json = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": _num_reused(plan, choices)},
    }
    if plan.has_prediction:
        usage["completion_tokens_details"] = _prediction_details(choices)
    return usage


def _num_reused(plan: Plan, choices: Sequence[ChoiceAnswer]) -> int:
    """Prompt tokens that were not computed for this request; a prompt counts once."""
    return sum(
        choice.last.num_reused
        for choice, request in zip(choices, plan.requests, strict=True)
        if choice.last is not None and request.sampling.choice_index == 0
    )


def _prediction_details(choices: Sequence[ChoiceAnswer]) -> Json:
    """OpenAI's two counts. The memory that reads the prediction reads the prompt as well."""
    ends = [choice.last for choice in choices if choice.last is not None]
    memory = sum_counts(end.counts for end in ends if end.counts is not None).by_source[
        Source.MEMORY
    ]
    return {
        "accepted_prediction_tokens": memory.accepted,
        "rejected_prediction_tokens": memory.proposed - memory.accepted,
    }


def envelope(plan: Plan, *, chunk: bool) -> Json:
    """Fields that every object of an answer begins with."""
    kind = "chat.completion" if plan.is_chat else "text_completion"
    return {
        "id": plan.request_id,
        "object": f"{kind}.chunk" if chunk and plan.is_chat else kind,
        "created": plan.created_s,
        "model": plan.model,
        "system_fingerprint": plan.system_fingerprint,
    }


def choice_extras(plan: Plan, choice: Json, answer: ChoiceAnswer | Delta) -> None:
    """Add token ids and sources to a choice where the request asked for them."""
    if plan.return_token_ids:
        choice["token_ids"] = list(answer.token_ids)
    if plan.detail:
        choice["dvi"] = {"sources": [source.value for source in answer.sources]}


def hidden_ends(request: DecodeRequest) -> frozenset[int]:
    """Tokens that end an answer and have no text in it."""
    sampling = request.sampling
    ends = frozenset(() if sampling.ignore_eos else sampling.end_token_ids)
    return ends if sampling.include_stop_str_in_output else ends | set(sampling.stop_token_ids)


class ChoiceLogprobs:
    """Log-probabilities of one choice in the form of its route, in the order of its deltas."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan = plan
        self._request = plan.requests[index]
        self._echo_len = len(plan.echoes[index]) if plan.echoes else 0
        self._ends = hidden_ends(self._request)
        self._writer = LogprobWriter(
            plan.texts, skip_special_tokens=self._request.sampling.skip_special_tokens
        )
        self._writer.begin_after(self._echo_len)

    def of(self, delta: Delta) -> Json | None:
        """Those of one delta, the echoed prompt's before its own; None where nobody asked."""
        if not self._plan.wants_logprobs:
            return None
        ids = delta.token_ids
        is_end = delta.finish_reason is FinishReason.STOP and bool(ids) and ids[-1] in self._ends
        if self._plan.is_chat:
            return self._writer.chat(delta.logprobs, is_end=is_end)
        parts = []
        if delta.prompt_logprobs is not None:
            prompt_ids = self._request.prompt_ids
            parts.append(self._writer.prompt(prompt_ids, delta.prompt_logprobs, self._echo_len))
        parts.append(self._writer.completion(delta.logprobs, is_end=is_end))
        return join_completion(parts)

    def joined(self, parts: Sequence[Json]) -> Json | None:
        """What ``of`` gave for all deltas, as one."""
        if not self._plan.wants_logprobs:
            return None
        return join_chat(parts) if self._plan.is_chat else join_completion(parts)


def _full_choice(plan: Plan, answer: ChoiceAnswer) -> Json:
    assert answer.last is not None
    assert answer.last.finish_reason is not None
    logprobs = ChoiceLogprobs(plan, answer.index)
    parts = [part for part in map(logprobs.of, answer.deltas) if part is not None]
    choice: Json = {"index": answer.index, "logprobs": logprobs.joined(parts)}
    if plan.is_chat:
        message = MessageWriter(plan, answer.index)
        choice["message"] = join_message([message.part(delta) for delta in answer.deltas])
        choice["finish_reason"] = message.finish_reason(answer.last)
    else:
        choice["text"] = (plan.echoes[answer.index] if plan.echoes else "") + "".join(answer.texts)
        choice["finish_reason"] = answer.last.finish_reason.value
    choice_extras(plan, choice, answer)
    if plan.return_token_ids and not plan.is_chat:
        choice["prompt_token_ids"] = list(plan.requests[answer.index].prompt_ids)
    return choice


def full_answer(plan: Plan, choices: Sequence[ChoiceAnswer]) -> Json:
    """The object of a request without ``stream``."""
    answer = envelope(plan, chunk=False)
    answer["choices"] = [_full_choice(plan, choice) for choice in choices]
    answer["usage"] = usage_object(plan, choices)
    if plan.return_token_ids and plan.is_chat:
        answer["prompt_token_ids"] = list(plan.requests[0].prompt_ids)
    answer["dvi"] = dvi_object(plan, choices)
    return answer
