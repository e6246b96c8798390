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
from serving.message import MessageWriter
from serving.plan import Plan


class ChunkWriter:
    """Turns the deltas of one plan into chunks; keeps what the last chunk sums up."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._choices = [ChoiceAnswer(index) for index in range(len(plan.requests))]
        self._logprobs = [ChoiceLogprobs(plan, index) for index in range(len(plan.requests))]
        self._messages = [MessageWriter(plan, index) for index in range(len(plan.requests))]
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
        news = self._news(index, delta)
        if self._worth_sending(delta, news):
            chunk = self._chunk([self._delta_choice(index, delta, news)])
            if is_last and not self._plan.include_usage:
                chunk["dvi"] = dvi_object(self._plan, self._choices)
            yield chunk
        if is_last and self._plan.include_usage:
            chunk = self._chunk([])
            chunk["usage"] = usage_object(self._plan, self._choices)
            chunk["dvi"] = dvi_object(self._plan, self._choices)
            yield chunk

    def _news(self, index: int, delta: Delta) -> Json:
        """What a delta adds to the text of its choice, in the form of its route."""
        if self._plan.is_chat:
            return {"delta": self._messages[index].part(delta)}
        return {"text": self._to_echo.pop(index, "") + delta.text}

    def _worth_sending(self, delta: Delta, news: Json) -> bool:
        plan = self._plan
        wants_tokens = plan.detail or plan.return_token_ids or plan.wants_logprobs
        has_news = any(news.values()) or (wants_tokens and bool(delta.token_ids))
        has_news |= delta.prompt_logprobs is not None
        return has_news or delta.finish_reason is not None

    def _choice(self, index: int) -> Json:
        return {"index": index, "logprobs": None, "finish_reason": None}

    def _delta_choice(self, index: int, delta: Delta, news: Json) -> Json:
        plan = self._plan
        choice = self._choice(index) | news
        choice["logprobs"] = self._logprobs[index].of(delta)
        if delta.finish_reason is not None:
            choice["finish_reason"] = self._messages[index].finish_reason(delta)
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
