"""The tokenizer as llguidance wants it: the bytes of every id, and which ids end an answer.

Owns the bridge; does not know any grammar.
"""

from __future__ import annotations

from collections.abc import Sequence

from llguidance import LLTokenizer
from tokenizers import Tokenizer as FastTokenizer


def grammar_tokenizer(fast: FastTokenizer, end_token_ids: Sequence[int]) -> LLTokenizer:
    """Made from the tokenizer's own tokenizer.json; about a second for 50,000 ids.

    llguidance needs at least one end token: where the model names none, id 0 stands for it, which
    costs nothing because masks of end tokens are set by whoever knows the request.
    """
    plain = FastTokenizer.from_str(fast.to_str())  # a copy: padding is a setting of the original
    plain.no_padding()
    plain.no_truncation()
    return LLTokenizer(plain.to_str(), eos_token=list(end_token_ids) or [0])
