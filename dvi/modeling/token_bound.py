"""How few tokens a text can have, told without tokenizing it.

Owns the argument: in byte-level BPE without a normalizer every byte of a text is in exactly one
token, so a text has at least its bytes over the longest token's. Knows no limit.
"""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer as FastTokenizer


def longest_token_bytes(fast: FastTokenizer) -> int | None:
    """Most bytes of text that one token can stand for; None where nothing is known of that.

    A piece has a character a byte, so its own length in UTF-8 is no less than what it stands for.
    """
    parts: dict[str, Any] = json.loads(fast.to_str())
    added = parts.get("added_tokens") or ()
    if parts["model"].get("type") != "BPE" or parts.get("normalizer") is not None:
        return None
    if not _keeps_every_byte(parts.get("pre_tokenizer")):
        return None
    if any(token["lstrip"] or token["rstrip"] for token in added):
        return None  # such a token takes any number of spaces with it
    return max(len(piece.encode()) for piece in fast.get_vocab(with_added_tokens=True))


def _keeps_every_byte(pre_tokenizer: dict[str, Any] | None) -> bool:
    """Whether it only cuts, and its pieces are bytes: an unknown character is never merged away."""
    if pre_tokenizer is None:
        return False
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    only_cuts = all(
        step["type"] in ("ByteLevel", "Digits")
        or (step["type"] == "Split" and step["behavior"] != "Removed")
        for step in steps
    )
    return only_cuts and any(step["type"] == "ByteLevel" for step in steps)
