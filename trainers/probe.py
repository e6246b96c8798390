"""A fixed set of answers, scored again and again with the version in service.

Owns which rows they are: the first that the gate held out. Their text never changes, so a lower
score is the draft's doing and never the traffic's. Does not know what follows from it. A restart
begins a new set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dvi.replay import ReplayStore, RowKey
from dvi.types import Trace

MAX_TRACES = 8
MIN_TRACES = 2  # fewer are left in the store: a new set begins


class ProbeSet:
    """Keys only; content stays in the store, where eviction and purge reach it."""

    def __init__(self, store: ReplayStore) -> None:
        self._store = store
        self._keys: list[RowKey] = []

    def measure(
        self, newest: Sequence[RowKey], agreement: Callable[[Sequence[Trace]], float]
    ) -> float:
        """The agreement on the set, which is begun from ``newest`` where there is none."""
        found = self._store.load(self._keys) if self._keys else []
        if len(found) < MIN_TRACES:
            self._keys = list(newest)[:MAX_TRACES]
            found = self._store.load(self._keys)
        return agreement([row.trace for row in found])
