"""A toy alphabet: the text of each of 64 ids, and the same as a tokenizer for grammars.

Owns no assertion; does not know engines.
"""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

# One to three letters an id, so that stop strings start and end inside tokens and across them.
TEXTS = tuple("abcdefghijklmnopqrstuvwxyz"[i % 26] * (1 + i % 3) for i in range(64))
END = 0  # the one end token where a test has one


class Letters:
    """What llguidance reads of a tokenizer."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)
    tokens = tuple(b"<end>" if index == END else text.encode() for index, text in enumerate(TEXTS))

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text, longest first."""
        raw = text if isinstance(text, bytes) else text.encode()
        ids: list[int] = []
        while raw:
            fits = [i for i, one in enumerate(self.tokens) if i != END and raw.startswith(one)]
            if not fits:
                break
            ids.append(max(fits, key=lambda i: len(self.tokens[i])))
            raw = raw[len(self.tokens[ids[-1]]) :]
        return ids


def letter_tokenizer() -> LLTokenizer:
    """The alphabet for grammars."""
    return LLTokenizer(TokenizerWrapper(Letters()))
