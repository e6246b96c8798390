"""The adapter slot: the only place where the weights of the live draft change.

Owns one staged version and the counts of exchanges; does not know what the weights are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dvi.decoding.faults import FAULTS
from dvi.decoding.observer import EngineObserver, SilentObserver
from dvi.drafting import Drafter, DraftWeights

logger = logging.getLogger(__name__)

SWAPPED = "swapped"
REFUSED = "refused"


class AdapterSlot:
    """Hands prepared weights from the watcher's thread to the decode thread.

    Invariant: between two rounds the drafter holds exactly one whole version. The newest staged
    version wins; one that was staged and never swapped in is forgotten and counted nowhere.
    """

    def __init__(
        self,
        drafter: Drafter,
        clock: Callable[[], float],
        observer: EngineObserver | None = None,
    ) -> None:
        self._drafter = drafter
        self._clock = clock
        self._observer = observer or SilentObserver()
        self._lock = threading.Lock()
        self._staged: DraftWeights | None = None
        self._counts = {SWAPPED: 0, REFUSED: 0}

    def stage(self, weights: DraftWeights) -> None:
        """Put weights from ``Drafter.prepare`` in line for the next round. Any thread."""
        with self._lock:
            self._staged = weights

    def count_refused(self) -> None:
        """A version did not pass ``Drafter.prepare``: the old one stays. Any thread."""
        with self._lock:
            self._counts[REFUSED] += 1

    def swap_if_staged(self) -> bool:
        """Exchange the drafter's weights if some are staged; True if it did. Decode thread only.

        Weights that the drafter fails to load are dropped and counted as refused.
        """
        with self._lock:
            weights, self._staged = self._staged, None
        if weights is None:
            return False
        start_s = self._clock()
        try:
            self._drafter.load(weights)
        except FAULTS:
            logger.exception("adapter version %d not loaded", weights.adapter_version)
            self.count_refused()
            return False
        with self._lock:
            self._counts[SWAPPED] += 1
        self._observer.swap_pause(self._clock() - start_s)
        return True

    def counts(self) -> dict[str, int]:
        """Exchanges so far by result: swapped, refused. Any thread."""
        with self._lock:
            return dict(self._counts)
