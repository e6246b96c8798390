"""Which rows the learner may draw: the newest ones and a reservoir of all older ones.

Owns row keys only; content stays in the replay store, so that eviction, purge and exact resume do
not contradict each other. Random choices are pure functions of (seed, purpose, counter): the
random state of a checkpoint is its counters. Knows neither traces nor the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from dvi.replay import RowKey
from trainers.strata import Strata, StrataState


class Purpose(IntEnum):
    """Keeps the random streams of one seed apart; values are fixed for ever."""

    BATCH = 0
    RESERVOIR = 1


def generator(seed: int, purpose: Purpose, counter: int) -> np.random.Generator:
    """The generator of one decision; equal arguments give equal draws in every process."""
    return np.random.default_rng((seed, int(purpose), counter))


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What a checkpoint keeps of a memory."""

    newest: tuple[RowKey, ...]  # oldest first
    reservoir: tuple[RowKey, ...]
    num_spilled: int  # keys that ever left the newest rows
    strata: StrataState = field(default_factory=StrataState)


class Memory:
    """The newest ``newest_rows`` keys and a sample of the keys before them.

    The sample is uniform within a domain, and when it is full no domain that is told apart has more
    of it than another that wants more (strata.py).

    Invariant: a key is in at most one of the two, and in it once.
    """

    def __init__(self, newest_rows: int, reservoir_rows: int, seed: int) -> None:
        self.newest_rows = newest_rows
        self.reservoir_rows = reservoir_rows
        self.seed = seed
        self.newest: deque[RowKey] = deque()
        self.reservoir: list[RowKey] = []
        self.num_spilled = 0
        self.strata = Strata()

    def __len__(self) -> int:
        return len(self.newest) + len(self.reservoir)

    def keys(self) -> list[RowKey]:
        """All keys, reservoir first, then the newest ones, oldest first."""
        return [*self.reservoir, *self.newest]

    def admit(self, keys: Collection[RowKey]) -> None:
        """Take keys that were never here before, oldest first."""
        assert len({*self.newest, *self.reservoir, *keys}) == len(self) + len(keys)
        for key in keys:
            self.newest.append(key)
            if len(self.newest) > self.newest_rows:
                self._spill(self.newest.popleft())

    def forget(self, keys: Collection[RowKey]) -> int:
        """Drop keys whose rows are gone; returns how many were here."""
        before = len(self)
        self.newest = deque(key for key in self.newest if key not in keys)
        self.reservoir = [key for key in self.reservoir if key not in keys]
        self.strata.forget(keys)
        return before - len(self)

    def draw(self, size: int, newest_share: float, draw_index: int) -> list[RowKey]:
        """``size`` distinct keys (all, if there are fewer), ``newest_share`` of them newest.

        A part that is too small is filled from the other. A function of the memory's state, the
        seed and ``draw_index``.
        """
        size = min(size, len(self))
        num_old = min(size - round(newest_share * size), len(self.reservoir))
        num_new = min(size - num_old, len(self.newest))
        num_old = size - num_new
        random = generator(self.seed, Purpose.BATCH, draw_index)
        new = random.permutation(len(self.newest))[:num_new]
        old = random.permutation(len(self.reservoir))[:num_old]
        return [self.newest[i] for i in new] + [self.reservoir[i] for i in old]

    def snapshot(self) -> MemoryState:
        """The state that ``restore`` takes."""
        newest, reservoir = tuple(self.newest), tuple(self.reservoir)
        return MemoryState(newest, reservoir, self.num_spilled, self.strata.snapshot())

    def restore(self, state: MemoryState) -> None:
        """Go back to a snapshot; smaller limits than it was made with take effect at once."""
        self.newest = deque()
        self.reservoir = list(state.reservoir)[: self.reservoir_rows]
        self.num_spilled = state.num_spilled
        self.strata = Strata(state.strata)
        self.admit(state.newest)

    def _spill(self, key: RowKey) -> None:
        """Take the place of a row of the largest stratum, where its own has at least two fewer.

        Else reservoir sampling (algorithm R) within its own: each of its keys stays with equal
        probability. One fewer is no reason: equal strata would exchange a row at every turn.
        """
        self.num_spilled += 1
        self.strata.count(key)
        if len(self.reservoir) < self.reservoir_rows:
            self.reservoir.append(key)
            return
        own = self.strata.of(key)
        places: dict[int, list[int]] = {own: []}
        for place, kept in enumerate(self.reservoir):
            places.setdefault(self.strata.of(kept), []).append(place)
        largest = max(places, key=lambda stratum: (len(places[stratum]), stratum))
        random = generator(self.seed, Purpose.RESERVOIR, self.num_spilled)
        if len(places[own]) < len(places[largest]) - 1:
            slots, slot = places[largest], int(random.integers(len(places[largest])))
        else:
            slots, slot = places[own], int(random.integers(self.strata.seen(own)))
        if slot < len(slots):
            self.strata.forget([self.reservoir[slots[slot]]])
            self.reservoir[slots[slot]] = key
        else:
            self.strata.forget([key])
