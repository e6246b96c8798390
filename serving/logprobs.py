"""Log-probabilities as OpenAI writes them: one form for completions, one for chat.

Owns the place of every token in the text; knows neither where the numbers come from nor chunks.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from dvi.types import TokenLogprob
from serving.words import TokenTexts

Json = dict[str, Any]
# JSON has no infinity; the number vLLM sends.
LEAST_LOGPROB = -9999.0


class LogprobWriter:
    """One choice's log-probabilities, delta by delta; keeps the place in the text.

    A token without text in the answer (the end token; special ones where they are skipped) has an
    empty ``token``; among alternatives it is written out.
    """

    def __init__(self, texts: TokenTexts, *, skip_special_tokens: bool) -> None:
        self._texts = texts
        self._skip = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # characters before the next token

    def chat(self, entries: Sequence[TokenLogprob], *, is_end: bool) -> Json:
        """``{content: [...]}``; with ``is_end`` the last token ended the answer without text."""
        content = []
        for place, entry in enumerate(entries):
            hidden = self._is_hidden(entry.token_id, is_end and place == len(entries) - 1)
            text, data = ("", b"") if hidden else self._texts.written(entry.token_id)
            content.append(
                {
                    "token": text,
                    "logprob": max(entry.logprob, LEAST_LOGPROB),
                    "bytes": list(data),
                    "top_logprobs": [self._alternative(*pair) for pair in entry.top],
                }
            )
        return {"content": content, "refusal": None}

    def completion(self, entries: Sequence[TokenLogprob], *, is_end: bool) -> Json:
        """``{tokens, token_logprobs, top_logprobs, text_offset}`` of an answer's tokens."""
        answer = _empty()
        for place, entry in enumerate(entries):
            hidden = self._is_hidden(entry.token_id, is_end and place == len(entries) - 1)
            self._append(answer, entry, hidden)
        return answer

    def prompt(
        self, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None], text_len: int
    ) -> Json:
        """The same of an echoed prompt of ``text_len`` characters; the first token has none.

        Tokens are written out whatever they are: harnesses look them up among the alternatives.
        """
        answer = _empty()
        self._offset = 0
        for token_id, entry in zip(token_ids, entries, strict=True):
            if entry is not None:
                self._append(answer, entry, hidden=False)
                continue
            answer["tokens"].append(self._texts.key(token_id))
            answer["token_logprobs"].append(None)
            answer["top_logprobs"].append(None)
            answer["text_offset"].append(self._offset)
            self._advance(token_id)
        self._decoder.reset()
        self._offset = text_len
        answer["text_offset"] = [min(offset, text_len) for offset in answer["text_offset"]]
        return answer

    def begin_after(self, text_len: int) -> None:
        """The answer follows an echoed text without log-probabilities of its own."""
        self._offset = text_len

    def _append(self, answer: Json, entry: TokenLogprob, hidden: bool) -> None:
        key = self._texts.key(entry.token_id)
        logprob = max(entry.logprob, LEAST_LOGPROB)
        top = {key: logprob}
        for token_id, value in entry.top:
            top.setdefault(self._texts.key(token_id), max(value, LEAST_LOGPROB))
        answer["tokens"].append("" if hidden else key)
        answer["token_logprobs"].append(logprob)
        answer["top_logprobs"].append(top)
        answer["text_offset"].append(self._offset)
        if not hidden:
            self._advance(entry.token_id)

    def _advance(self, token_id: int) -> None:
        if not (self._skip and self._texts.is_special(token_id)):
            self._offset += len(self._decoder.decode(self._texts.written(token_id)[1]))

    def _is_hidden(self, token_id: int, is_end: bool) -> bool:
        return is_end or (self._skip and self._texts.is_special(token_id))

    def _alternative(self, token_id: int, logprob: float) -> Json:
        text, data = self._texts.written(token_id)
        return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(data)}


def _empty() -> Json:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def join_completion(parts: Sequence[Json]) -> Json:
    """Several completion forms as one."""
    joined = _empty()
    for part in parts:
        for name, values in part.items():
            joined[name] += values
    return joined


def join_chat(parts: Sequence[Json]) -> Json:
    """Several chat forms as one."""
    return {"content": [item for part in parts for item in part["content"]], "refusal": None}
