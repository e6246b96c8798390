"""Where a new row goes: unseen traces wait for the gate, then enter the memory, once.

Owns the cursor, the held-out keys and the order of admission; knows neither what a row holds nor
when a version is published.

A row's life: read past the cursor -> held out (scored before it is ever trained on) -> memory.
Until the memory holds a first batch, rows go straight into it: there is nothing to gate yet, and
learning must not wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from dvi.replay import RowKey
from trainers.memory import Memory, MemoryState


@dataclass(frozen=True, slots=True)
class IntakeState:
    """What a checkpoint keeps of the intake."""

    cursor: dict[str, int]  # writer -> last seq admitted
    holdout: tuple[RowKey, ...]  # oldest first
    memory: MemoryState
    num_admitted: int  # rows ever taken
    num_missing: int  # rows that left the store before us


class Intake:
    """Admits each row exactly once: a row at or before the cursor is never taken again."""

    def __init__(self, memory: Memory, first_rows: int, max_holdout: int) -> None:
        self.memory = memory
        self.first_rows = first_rows  # rows that go straight into an empty memory
        self.max_holdout = max_holdout
        self.cursor: dict[str, int] = {}
        self.holdout: deque[RowKey] = deque()
        self.num_admitted = 0
        self.num_missing = 0

    def take(self, key: RowKey) -> bool:
        """Admit the next row of a writer; False, and no change, when it was here before."""
        if not self.skip(key):
            return False
        self.num_admitted += 1
        self._place(key)
        return True

    def skip(self, key: RowKey) -> bool:
        """Move the cursor past a row without admitting it; False when it was past it already."""
        if key.seq <= self.cursor.get(key.writer, 0):
            return False
        self.cursor[key.writer] = key.seq
        return True

    def release_holdout(self) -> None:
        """The held-out rows were scored: they may be trained on from now on."""
        self.memory.admit(self.holdout)
        self.holdout.clear()

    def forget(self, keys: Collection[RowKey]) -> None:
        """Drop rows that the store no longer has (evicted or purged)."""
        before = len(self.holdout)
        self.holdout = deque(key for key in self.holdout if key not in keys)
        self.num_missing += before - len(self.holdout) + self.memory.forget(keys)

    def keys(self) -> list[RowKey]:
        """Every row that may still be read: what the store should evict last."""
        return [*self.memory.keys(), *self.holdout]

    def snapshot(self) -> IntakeState:
        """The state that ``restore`` takes."""
        return IntakeState(
            cursor=dict(self.cursor),
            holdout=tuple(self.holdout),
            memory=self.memory.snapshot(),
            num_admitted=self.num_admitted,
            num_missing=self.num_missing,
        )

    def restore(self, state: IntakeState) -> None:
        """Go back to a snapshot."""
        self.cursor = dict(state.cursor)
        self.holdout = deque(state.holdout)
        self.memory.restore(state.memory)
        self.num_admitted = state.num_admitted
        self.num_missing = state.num_missing
        self._overflow()

    def _place(self, key: RowKey) -> None:
        if len(self.memory) < self.first_rows:
            self.memory.admit((key,))
            return
        self.holdout.append(key)
        self._overflow()

    def _overflow(self) -> None:
        """The gate wants the newest rows: the oldest held-out ones make room."""
        while len(self.holdout) > self.max_holdout:
            self.memory.admit((self.holdout.popleft(),))
