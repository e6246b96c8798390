"""The lease: of all processes on all machines, one trains.

Owns the row that says who. No clocks of two machines are compared: the holder's beat grows every
RENEW_S, and whoever waits takes the lease once it has seen the beat stand still for LEASE_S by its
own clock. The holder trusts its lease for TRUST_S after a beat, so it has stopped writing before
another begins. A holder that comes back (same state folder, new process) takes it at once.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, update

from dvi.replay.database import Database
from dvi.replay.rows import ReplayStoreError
from dvi.replay.schema import TRAINER, leases

RENEW_S = 2.0
TRUST_S = 5.0
LEASE_S = 10.0
_ROW = leases.c.name == TRAINER


class LeaseLost(RuntimeError):
    """Another process has taken the lease; whoever gets this stops at once."""


class Lease:
    """One process's side of the lease. ``renew`` may be called from a thread of its own."""

    def __init__(self, database: Database, holder: str, clock: Callable[[], float]) -> None:
        self._database = database
        self._holder = holder  # the same again after a restart, and nobody else's
        self._clock = clock
        self._term = 0  # of the taking that is ours; 0: never held
        self._beaten_s = 0.0  # when the last beat that got through was begun
        self._is_lost = False
        self._seen = (-1, -1)  # another's term and beat
        self._seen_s = 0.0  # since when they stand still

    def take(self) -> bool:
        """Take the lease if it is free, ours from before, or its holder's beat stands still."""
        now_s = self._clock()
        with self._database.changing() as connection:
            row = connection.execute(select(leases).where(_ROW).with_for_update()).one()
            if row.holder not in ("", self._holder) and not self._stands_still(
                (row.term, row.beat), now_s
            ):
                return False
            taken = {"holder": self._holder, "term": row.term + 1, "beat": row.beat + 1}
            connection.execute(update(leases).where(_ROW).values(taken))
        self._term, self._beaten_s, self._is_lost = row.term + 1, now_s, False
        return True

    def renew(self) -> None:
        """Beat once. ReplayStoreError where the database cannot now; see ``check`` for the rest."""
        now_s = self._clock()
        with self._database.changing() as connection:
            beat = update(leases).where(_ROW, leases.c.term == self._term)
            done = connection.execute(beat.values(beat=leases.c.beat + 1)).rowcount
        if done:
            self._beaten_s = now_s
        else:
            self._is_lost = True

    def check(self) -> None:
        """Return if this process may write what only the holder may.

        LeaseLost when another holds the lease; ReplayStoreError while that cannot be known.
        """
        if self._is_lost:
            raise LeaseLost("another machine has taken over the training")
        if self._clock() - self._beaten_s > TRUST_S:
            raise ReplayStoreError("the lease of the trainer could not be renewed")

    def give_back(self) -> None:
        """Let another have it without a wait."""
        with self._database.changing() as connection:
            mine = update(leases).where(_ROW, leases.c.term == self._term)
            connection.execute(mine.values(holder=""))

    def holder(self) -> str:
        """Who holds it, empty for nobody."""
        with self._database.reading() as connection:
            return str(connection.execute(select(leases.c.holder).where(_ROW)).scalar_one())

    def _stands_still(self, seen: tuple[int, int], now_s: float) -> bool:
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        return now_s - self._seen_s >= LEASE_S
