"""Compares two passes over the same prompts token by token.

Owns the first divergence; its margin in logits is measured elsewhere, with the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dvi.demo.answers import Answer


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two answers to one prompt differ."""

    index: int  # of the prompt
    prefix_ids: tuple[int, ...]  # prompt and the common part of the answers
    position: int  # tokens of the answer before it
    served_id: int | None  # None: that answer had ended
    plain_id: int | None
    seed: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many answers were compared, how many are identical, and where the others part."""

    compared: int
    divergences: tuple[Divergence, ...]

    @property
    def identical(self) -> int:
        """Answers equal in every token and in their length."""
        return self.compared - len(self.divergences)


def _first_divergence(served: Answer, plain: Answer) -> Divergence | None:
    ours, theirs = served.token_ids, plain.token_ids
    if ours == theirs and served.prompt_ids == plain.prompt_ids:
        return None
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    return Divergence(
        index=served.index,
        prefix_ids=(*served.prompt_ids, *ours[:common]),
        position=common,
        served_id=ours[common] if common < len(ours) else None,
        plain_id=theirs[common] if common < len(theirs) else None,
        seed=served.seed,
    )


def compare(served: Sequence[Answer], plain: Sequence[Answer]) -> Comparison:
    """Compare two passes; both must hold the same prompts."""
    by_index = {answer.index: answer for answer in plain}
    assert set(by_index) == {answer.index for answer in served}
    found = [_first_divergence(answer, by_index[answer.index]) for answer in served]
    return Comparison(len(served), tuple(item for item in found if item is not None))
