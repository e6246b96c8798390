"""Where two answers to one request part.

Owns the comparison of ids; does not know who gave the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dvi.types import DecodeRequest, FinishReason


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of one answer and why it ended."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Pair:
    """One request, the answer that was served, and the one of plain decoding."""

    request: DecodeRequest
    served: Answer
    plain: Answer


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where the answers of a pair differ."""

    pair: Pair
    position: int  # tokens of both answers before it
    # The two tokens; None where one answer had ended, or both did for different reasons.
    tokens: tuple[int, int] | None


def first_divergence(pair: Pair) -> Divergence | None:
    """None where both answers have the same tokens and ended for the same reason."""
    served, plain = pair.served, pair.plain
    if served == plain:
        return None
    num_equal = common_length(served.token_ids, plain.token_ids)
    tokens = None
    if num_equal < min(len(served.token_ids), len(plain.token_ids)):
        tokens = (served.token_ids[num_equal], plain.token_ids[num_equal])
    return Divergence(pair, num_equal, tokens)


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return place
    return min(len(one), len(other))
