"""Several runners decode the same prompts in turn, so that whatever drifts hits all alike.

Owns the turns and the clock; does not know how a runner decodes or what its figures mean.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from dvi.bench.bench import Ids
from dvi.bench.prompts import UNNAMED, Item, groups_of, mixed, of_group
from dvi.decoding.stats import Phase
from dvi.types import AcceptanceCounts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class How:
    """How the prompts of one turn are decoded."""

    max_tokens: int
    temperature: float
    first_seed: int  # of the first prompt; the next one's is one more


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer as ids, the end token included."""

    token_ids: Ids
    first_token_s: float | None = None  # since the turn began; None: cannot be seen
    counts: AcceptanceCounts | None = None  # None: nobody counts proposals


class Runner(Protocol):
    """One way to decode."""

    @property
    def name(self) -> str:
        """As in tables."""

    def run(self, prompts: Sequence[Ids], how: How) -> list[Answer]:
        """Decode all of them together, as many at once as the runner can."""

    def phase_s(self) -> Mapping[Phase, float]:
        """Seconds spent so far, by phase; empty where nobody measures them."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What every runner decodes in one turn."""

    group: str
    block: int  # the repeat it counts for
    items: Sequence[Item]
    first_seed: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One runner's work on one unit."""

    seconds: float
    answers: Sequence[Answer]
    phase_s: Mapping[Phase, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers, counted by ids."""
        return sum(len(answer.token_ids) for answer in self.answers)


@dataclass(frozen=True, slots=True)
class Result:
    """``turns[name][i]`` is that runner's work on ``units[i]``."""

    units: Sequence[Unit]
    turns: Mapping[str, Sequence[Turn]]


def single_units(items: Sequence[Item], num_blocks: int) -> list[Unit]:
    """One prompt at a time; each group's prompts are dealt to the blocks.

    Block after block, in each group after group: a race that is stopped has seen all groups.
    """
    dealt: list[tuple[int, Item]] = []
    for group in groups_of(items):
        own = of_group(items, group)
        most = min(num_blocks, len(own))
        dealt += [(place * most // len(own), item) for place, item in enumerate(own)]
    dealt.sort(key=lambda one: one[0])
    return [Unit(item.group, block, [item], i) for i, (block, item) in enumerate(dealt)]


def batch_units(items: Sequence[Item], batch_size: int, num_blocks: int) -> list[Unit]:
    """All groups mixed, in ``num_blocks`` equal units, or fewer so that each fills a batch."""
    whole = mixed(items)
    count = max(1, min(num_blocks, len(whole) // batch_size))
    bounds = [len(whole) * i // count for i in range(count + 1)]
    return [
        Unit(UNNAMED, i, whole[first:last], first)
        for i, (first, last) in enumerate(pairwise(bounds))
    ]


def race(
    runners: Sequence[Runner],
    units: Sequence[Unit],
    how: How,
    clock: Callable[[], float] = time.perf_counter,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Result:
    """Every runner on every unit, or on the first ones where it is stopped between two of them.

    Who begins moves on by one each unit.
    """
    turns: dict[str, list[Turn]] = {runner.name: [] for runner in runners}
    num_raced = 0
    for number, unit in enumerate(units):
        if number and is_stopped():
            break
        log.info("%s, %d of %d prompt groups", unit.group, number + 1, len(units))
        prompts = [item.ids for item in unit.items]
        own = How(how.max_tokens, how.temperature, how.first_seed + unit.first_seed)
        start = number % len(runners)
        for runner in [*runners[start:], *runners[:start]]:
            turns[runner.name].append(_turn(runner, prompts, own, clock))
        num_raced += 1
    return Result(units[:num_raced], turns)


def _turn(runner: Runner, prompts: Sequence[Ids], how: How, clock: Callable[[], float]) -> Turn:
    before = runner.phase_s()
    start_s = clock()
    answers = runner.run(prompts, how)
    seconds = clock() - start_s
    spent = {phase: value - before[phase] for phase, value in runner.phase_s().items()}
    return Turn(seconds, answers, spent)
