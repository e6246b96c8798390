"""The objects of a streamed answer, one call a delta.

Owns their order: on chat a role chunk a choice, text chunks, the chunk with the finish reason, then
the usage chunk if asked for. Knows nothing of SSE framing.
"""

from __future__ import annotations

from collections.abc import Iterator

from dvi.types import Delta
from serving.answers import (
    ChoiceAnswer,
    ChoiceLogprobs,
    Json,
    choice_extras,
    dvi_object,
    envelope,
    usage_object,
)
from serving.generation import ChoiceDelta
from serving.plan import Plan


class ChunkWriter:
    """Turns the deltas of one plan into chunks; keeps what the last chunk sums up."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._choices = [ChoiceAnswer(index) for index in range(len(plan.requests))]
        self._logprobs = [ChoiceLogprobs(plan, index) for index in range(len(plan.requests))]
        self._told_prompt: set[int] = set()
        self._to_echo = dict(enumerate(plan.echoes))

    def opening(self) -> Iterator[Json]:
        """Chunks that go out before the first token: the roles of a chat."""
        if not self._plan.is_chat:
            return
        for answer in self._choices:
            choice = self._choice(answer.index)
            choice["delta"] = {"role": "assistant", "content": ""}
            yield self._chunk([choice])

    def chunks(self, item: ChoiceDelta) -> Iterator[Json]:
        """Chunks of one delta: none while its text is held back, two at the very end."""
        index, delta = item
        answer = self._choices[index]
        answer.add(delta)
        is_last = all(choice.last is not None for choice in self._choices)
        if self._worth_sending(index, delta):
            chunk = self._chunk([self._delta_choice(index, delta)])
            if is_last and not self._plan.include_usage:
                chunk["dvi"] = dvi_object(self._plan, self._choices)
            yield chunk
        if is_last and self._plan.include_usage:
            chunk = self._chunk([])
            chunk["usage"] = usage_object(self._plan, self._choices)
            chunk["dvi"] = dvi_object(self._plan, self._choices)
            yield chunk

    def _worth_sending(self, index: int, delta: Delta) -> bool:
        plan = self._plan
        wants_tokens = plan.detail or plan.return_token_ids or plan.wants_logprobs
        has_news = bool(delta.text) or (wants_tokens and bool(delta.token_ids))
        has_news |= index in self._to_echo or delta.prompt_logprobs is not None
        return has_news or delta.finish_reason is not None

    def _choice(self, index: int) -> Json:
        return {"index": index, "logprobs": None, "finish_reason": None}

    def _delta_choice(self, index: int, delta: Delta) -> Json:
        plan = self._plan
        choice = self._choice(index)
        if plan.is_chat:
            choice["delta"] = {"content": delta.text} if delta.text else {}
        else:
            choice["text"] = self._to_echo.pop(index, "") + delta.text
        choice["logprobs"] = self._logprobs[index].of(delta)
        if delta.finish_reason is not None:
            choice["finish_reason"] = delta.finish_reason.value
        choice_extras(plan, choice, delta)
        if plan.return_token_ids and not plan.is_chat and index not in self._told_prompt:
            self._told_prompt.add(index)
            choice["prompt_token_ids"] = list(plan.requests[index].prompt_ids)
        return choice

    def _chunk(self, choices: list[Json]) -> Json:
        plan = self._plan
        chunk = envelope(plan, chunk=True)
        chunk["choices"] = choices
        if plan.include_usage:
            chunk["usage"] = None
        if plan.return_token_ids and plan.is_chat and not self._told_prompt:
            self._told_prompt.add(0)
            chunk["prompt_token_ids"] = list(plan.requests[0].prompt_ids)
        return chunk
