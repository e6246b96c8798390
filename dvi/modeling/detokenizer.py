"""Text of a growing answer, token by token.

Owns what is safe to show: a character whose bytes are not complete waits. Does not know stop
strings. tokenizers' own DecodeStream cannot say what it holds back at the end of an answer and
raises on some byte sequences that a model may well emit, so the window is kept here.
"""

from __future__ import annotations

from tokenizers import Tokenizer as FastTokenizer

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
MAX_HELD_TOKENS = 8  # a character has at most 4 bytes, one token each: longer is no character


class Detokenizer:
    """One answer. The texts of all ``push`` calls and ``flush`` join to the decoded whole."""

    def __init__(self, fast: FastTokenizer, *, skip_special_tokens: bool) -> None:
        self._fast = fast
        self._skip = skip_special_tokens
        self._window: list[int] = []  # tokens that still matter for what comes next
        self._num_decided = 0  # first tokens of the window whose text is final
        self._shown = ""  # text of the window that was handed out
        self._num_held = 0

    def push(self, token_id: int) -> str:
        """Add one token; returns the text that became safe to show, often one token's."""
        self._window.append(token_id)
        text = self._decode(self._window)
        safe = text.rstrip(REPLACEMENT) if self._num_held < MAX_HELD_TOKENS else text
        if safe != text or not safe.startswith(self._shown):
            self._num_held += 1
        else:
            self._num_held = 0
        if not safe.startswith(self._shown):
            return ""
        fresh = safe[len(self._shown) :]
        self._shown = safe
        if safe == text:
            self._shrink()
        return fresh

    def flush(self) -> str:
        """What is held back: replacement characters, if the answer ends inside a character."""
        text = self._decode(self._window)
        fresh = text[len(self._shown) :] if text.startswith(self._shown) else ""
        self._shown = text
        return fresh

    def _shrink(self) -> None:
        """Keep the tokens decided last as context: some decoders strip a space at the start.

        They begin and end with whole characters, so they decode alike without what came before.
        """
        context = self._window[self._num_decided :]
        text = self._decode(context)
        if text:
            self._window, self._shown = context, text
        self._num_decided = len(self._window)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._fast.decode(ids, skip_special_tokens=self._skip)
        return text
