"""Text to token ids and back, as the HTTP side needs it.

Owns how single tokens are written; knows no request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

# What a template's code can raise over odd arguments beside jinja's own errors.
TEMPLATE_FAULTS = (ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class PromptTokenizer(Protocol):
    """The part of ``dvi.modeling.Tokenizer`` that serving calls; any thread."""

    end_token_ids: tuple[int, ...]
    special_ids: frozenset[int]

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of a text."""

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that a text has at least, at no cost."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids."""

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for, as written; a part of a character too."""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """A conversation as the model reads it; raises ValueError where the template refuses it."""


class TokenTexts:
    """How single tokens of one tokenizer are written. Any thread."""

    def __init__(self, tokenizer: PromptTokenizer) -> None:
        self._tokenizer = tokenizer
        self.written = lru_cache(1 << 16)(self._written)

    def _written(self, token_id: int) -> tuple[str, bytes]:
        """Text and bytes; a part of a character has no text, so its bytes are spelled out."""
        data = self._tokenizer.token_bytes(token_id)
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in data), data

    def key(self, token_id: int) -> str:
        """The name of a token among alternatives, as OpenAI's completions spell it."""
        text, data = self.written(token_id)
        return f"bytes:{text}" if text.startswith("\\x") and text.encode() != data else text

    def is_special(self, token_id: int) -> bool:
        """Whether the token is markup: an end token, or a special one."""
        ends = self._tokenizer.end_token_ids
        return token_id in ends or token_id in self._tokenizer.special_ids
