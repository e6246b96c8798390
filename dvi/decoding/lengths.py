"""How many proposals pay: expected committed tokens over expected time, for a whole batch.

Pure arithmetic on probabilities and seconds; knows neither sessions nor how either was estimated.
A *reach* lists, for each proposal of a session, the probability that it and all before it are
accepted: it never rises, so taking the likeliest proposals first never skips one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Reach = Sequence[float]


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of one step of a given number of sessions."""

    passes: Sequence[float]  # [most proposals + 1] target pass with so many proposals in all
    draft_step_s: float  # one learned proposal for each of the sessions


@dataclass(frozen=True, slots=True)
class Choice:
    """Lengths of one step and the tokens a second that they promise."""

    lengths: tuple[int, ...]  # one a session
    goodput: float


def best_of_one(batch: int, reach: Reach, step_s: float, costs: StepCosts) -> float:
    """Best goodput if one of ``batch`` sessions alone proposes, at ``step_s`` a proposal."""
    best = batch / costs.passes[0]
    expected = float(batch)
    for length, chance in enumerate(reach, 1):
        expected += chance
        best = max(best, expected / (costs.passes[length] + length * step_s))
    return best


def best_lengths(reaches: Sequence[Reach], drafted: Sequence[bool], costs: StepCosts) -> Choice:
    """The lengths of highest goodput; none at all is always among them.

    ``drafted`` says whose proposals a learned draft makes, one step of all of them at a time; the
    others' cost nothing before verification. For each number of draft steps the proposals within
    reach are taken by probability and the best number of them is kept, so a pass that gets dear and
    then cheap again (the crossing from plain to packed matrices) is looked across.
    """
    batch = len(reaches)
    best_goodput, best_steps, best_taken = batch / costs.passes[0], 0, 0
    most_steps = max((len(r) for r, own in zip(reaches, drafted, strict=True) if own), default=0)
    for num_steps in range(most_steps + 1):
        chances = _within(reaches, drafted, num_steps)
        draft_s = num_steps * costs.draft_step_s
        expected = float(batch)
        for num_taken, chance in enumerate(chances, 1):
            expected += chance
            goodput = expected / (costs.passes[num_taken] + draft_s)
            if goodput > best_goodput:
                best_goodput, best_steps, best_taken = goodput, num_steps, num_taken
    lengths = _lengths(reaches, drafted, best_steps, best_taken)
    return Choice(lengths, best_goodput)


def worth_verifying(reach: Reach, goodput: float, passes: Sequence[float], num_others: int) -> int:
    """How many of a session's drafted proposals pay for their verification at ``goodput``.

    ``num_others`` proposals of other sessions are in the pass. What drafting cost is spent.
    """
    best, best_length, expected = -goodput * passes[num_others], 0, 0.0
    for length, chance in enumerate(reach, 1):
        expected += chance
        value = expected - goodput * passes[num_others + length]
        if value > best:
            best, best_length = value, length
    return best_length


def _within(reaches: Sequence[Reach], drafted: Sequence[bool], num_steps: int) -> list[float]:
    """Chances of all proposals that ``num_steps`` draft steps allow, likeliest first."""
    pairs = zip(reaches, drafted, strict=True)
    chances = [chance for reach, own in pairs for chance in (reach[:num_steps] if own else reach)]
    return sorted(chances, reverse=True)


def _lengths(
    reaches: Sequence[Reach], drafted: Sequence[bool], num_steps: int, num_taken: int
) -> tuple[int, ...]:
    """Whose proposals the ``num_taken`` likeliest are; of equal ones the earlier session's."""
    ranked = sorted(
        (-chance, session, place)
        for session, (reach, own) in enumerate(zip(reaches, drafted, strict=True))
        for place, chance in enumerate(reach[:num_steps] if own else reach)
    )
    lengths = [0] * len(reaches)
    for _, session, _ in ranked[:num_taken]:
        lengths[session] += 1
    return tuple(lengths)
