"""Are the answers the same? First divergences between runners, with their margins in logits.

Owns the comparison and the bound; a speed-up over other answers is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dvi.bench.bench import Ids
from dvi.bench.part import Json
from dvi.bench.race import Answer, How, Result
from dvi.decoding.gap import choice_gap, near_tie_bound
from dvi.modeling.target import TargetModel
from dvi.types import DecodeRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two answers to one prompt differ."""

    runner: str
    prompt: int
    position: int  # tokens of the answer before it
    margin: float  # logits between the two tokens; inf where one answer went on and one ended


@dataclass(frozen=True, slots=True)
class Identity:
    """How many answers were compared with plain decoding's, and what became of the others."""

    compared: int
    identical: int
    divergences: tuple[Divergence, ...]
    bound: float

    @property
    def failure(self) -> str | None:
        """One line where a margin is above the bound."""
        worst = max(self.divergences, key=lambda one: one.margin, default=None)
        if worst is None or worst.margin <= self.bound:
            return None
        return (
            f"answers differ: {worst.runner}, prompt {worst.prompt}, token {worst.position}, "
            f"margin {worst.margin:.2g} logits (bound {self.bound:.0e}); no speed-up is shown"
        )

    @property
    def line(self) -> str:
        """For people."""
        if self.identical == self.compared:
            return f"{self.compared} of {self.compared} answers identical to plain decoding"
        worst = max(one.margin for one in self.divergences)
        return (
            f"{self.identical} of {self.compared} answers identical to plain decoding, the others "
            f"part at near-ties of at most {worst:.1g} logits"
        )

    def as_json(self) -> Json:
        """For bench.json."""
        return dataclasses.asdict(self)


def own_bound(target: TargetModel) -> float:
    """For answers of engines of ours: canonical forwards leave no ties to chance."""
    return 0.0 if target.deterministic else near_tie_bound(target)


def compare(
    result: Result, how: How, target: TargetModel, against: Sequence[str], bound: float
) -> Identity:
    """Every answer of the runners ``against`` with the first runner's one to the same prompt."""
    base = next(iter(result.turns))
    found: list[Divergence] = []
    compared = 0
    for number, unit in enumerate(result.units):
        plain = result.turns[base][number].answers
        for name in against:
            others = result.turns[name][number].answers
            for place, item in enumerate(unit.items):
                compared += 1
                seed = how.first_seed + unit.first_seed + place
                params = SamplingParams(max_tokens=1, temperature=how.temperature, seed=seed)
                one = _divergence(target, item.ids, params, (plain[place], others[place]))
                if one is not None:
                    found.append(Divergence(name, unit.first_seed + place, one[0], one[1]))
    return Identity(compared, compared - len(found), tuple(found), bound)


def _divergence(
    target: TargetModel, prompt: Ids, params: SamplingParams, answers: tuple[Answer, Answer]
) -> tuple[int, float] | None:
    ours, theirs = (answer.token_ids for answer in answers)
    if ours == theirs:
        return None
    common = 0
    while common < min(len(ours), len(theirs)) and ours[common] == theirs[common]:
        common += 1
    if common == min(len(ours), len(theirs)):
        return common, float("inf")
    request = DecodeRequest("bench", prompt, params)
    tokens = (ours[common], theirs[common])
    return common, choice_gap(target, None, request, ours[:common], tokens)
