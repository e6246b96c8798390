"""The trainer's side of the replay store: new rows, rows by key, marks.

Owns the rule that content is read when it is needed and never kept; does not know which rows the
memory wants. Every method passes ReplayStoreError on: the store cannot do it now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dvi.replay import ReplayStore, RowKey, StoredTrace
from dvi.types import Trace
from trainers.batch import is_usable
from trainers.head_rows import TokenCounts
from trainers.intake import Intake


@dataclass(frozen=True, slots=True)
class NewRows:
    """What one look at the store brought."""

    num_read: int  # 0: the cursor stands at the end
    num_admitted: int  # the others cannot be trained on


class Rows:
    """Moves rows from the store into an intake, and traces out of the store."""

    def __init__(self, store: ReplayStore, intake: Intake, num_token_ids: int) -> None:
        self.store = store
        self.intake = intake
        self.num_token_ids = num_token_ids
        self.num_unusable = 0
        self.tokens = TokenCounts(num_token_ids)  # of every row admitted or listed
        self.marked: list[RowKey] | None = None  # reservoir that the store was last told

    def take_new(self, max_rows: int) -> NewRows:
        """Admit at most ``max_rows`` rows behind the cursor."""
        rows = self.store.read(self.intake.cursor, max_rows)
        num_admitted = 0
        for row in rows:
            if is_usable(row.trace, self.num_token_ids):
                self.intake.memory.strata.name(row.key, row.trace.domain)
                num_admitted += self.intake.take(row.key)
                self.tokens.add(row.trace)
            else:
                self.num_unusable += self.intake.skip(row.key)
        return NewRows(len(rows), num_admitted)

    def list_new(self, max_rows: int) -> list[tuple[RowKey, bool]]:
        """Keys behind the cursor and whether they can be trained on; moves the cursor only."""
        listed = []
        for row in self.store.read(self.intake.cursor, max_rows):
            usable = is_usable(row.trace, self.num_token_ids)
            self.num_unusable += not usable
            if usable:
                self.tokens.add(row.trace)
            self.intake.skip(row.key)
            listed.append((row.key, usable))
        return listed

    def load(self, keys: Sequence[RowKey]) -> list[StoredTrace]:
        """Those of ``keys`` that still exist, in order; the intake forgets the others."""
        found = self.store.load(keys)
        missing = set(keys) - {row.key for row in found}
        if missing:
            self.intake.forget(missing)
        return found

    def draw(self, size: int, newest_share: float, draw_index: int) -> list[Trace]:
        """A batch from the memory, drawn again while the store lacks a row of it."""
        memory = self.intake.memory
        while keys := memory.draw(size, newest_share, draw_index):
            found = self.load(keys)
            if len(found) == len(keys):
                return [row.trace for row in found]
        return []

    def mark_kept(self) -> None:
        """Tell the store which rows to evict last, when the reservoir changed.

        Newest rows are young anyway, so that they alone are no reason to write.
        """
        reservoir = list(self.intake.memory.reservoir)
        if reservoir != self.marked:
            self.store.set_kept(self.intake.keys())
            self.marked = reservoir
