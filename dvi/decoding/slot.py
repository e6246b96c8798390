"""The adapter slot: the only place where the weights of the live draft change.

Owns one staged version, the turns of two that draft by turns, and the counts of exchanges; does not
know what the weights are, nor which of two is better.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from dvi.decoding.faults import FAULTS
from dvi.decoding.observer import EngineObserver, SilentObserver
from dvi.drafting import Drafter, DraftWeights
from dvi.drift import Turn

logger = logging.getLogger(__name__)

SWAPPED = "swapped"
REFUSED = "refused"
# Rounds of the control for each of the canary: the comparison's variance is 3/4 of that at one.
CONTROL_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Pair:
    """Two versions that draft by turns, of a drafter that keeps the same state under both."""

    canary: DraftWeights
    base: DraftWeights  # what drafts now
    share: float  # of rounds that the canary drafts at most, in (0, 0.5]


class AdapterSlot:
    """Hands prepared weights from the watcher's thread to the decode thread.

    Invariant: between two rounds the drafter holds exactly one whole version. The newest staged
    version wins; one that was staged and never swapped in is forgotten and counted nowhere. Of a
    pair, the canary has drafted at most its share of the rounds at every moment since it came.
    What an exchange replaced lives on until ``drop_replaced``: to give megabytes back to the
    system takes milliseconds, which are not the decode thread's.
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
        self._staged: DraftWeights | Pair | None = None
        self._pair: Pair | None = None
        self._in_use: DraftWeights | None = None  # loaded last
        self._replaced: tuple[DraftWeights | Pair | None, ...] = ()  # by the last exchange
        self._num_rounds = 0  # since the pair came
        self._num_canary = 0  # of them, drafted by the canary
        self._num_owed = 0  # rounds that the control arm is behind
        self._canary_rounds = 0  # of all pairs
        self._left: int | None = None  # version in charge of the last pair, until an exchange
        self._broken: set[int] = set()  # versions that the drafter failed to load the last time
        self._counts = {SWAPPED: 0, REFUSED: 0}

    def stage(self, weights: DraftWeights | Pair) -> None:
        """Put weights from ``Drafter.prepare`` in line for the next round. Any thread.

        A single version takes all rounds, and ends a pair.
        """
        with self._lock:
            self._staged = weights

    def drop_replaced(self) -> None:
        """Let go of what the last exchange replaced. Any thread but the decode thread."""
        self._replaced = ()

    @property
    def adapter_version(self) -> int:
        """The version in charge: of a pair, not the canary. Any thread."""
        pair = self._pair
        return self._drafter.adapter_version if pair is None else pair.base.adapter_version

    @property
    def canary_version(self) -> int | None:
        """The canary that drafts now and then; None where there is none. Any thread."""
        pair = self._pair
        return None if pair is None else pair.canary.adapter_version

    @property
    def canary_rounds(self) -> int:
        """Rounds that canaries drafted for, so far. Any thread."""
        return self._canary_rounds

    def is_broken(self, version: int) -> bool:
        """Whether the drafter failed to load it when it was asked to last. Any thread."""
        return version in self._broken

    def count_refused(self) -> None:
        """A version did not pass ``Drafter.prepare``: the old one stays. Any thread."""
        with self._lock:
            self._counts[REFUSED] += 1

    def swap_if_staged(self) -> bool:
        """Exchange the drafter's weights if some are staged; True if it did. Decode thread only.

        Weights that the drafter fails to load are dropped and counted as refused. A pair changes
        nothing yet: it waits for ``take_turn``.
        """
        with self._lock:
            weights, self._staged = self._staged, None
        if weights is None:
            return False
        self._replaced = (self._in_use, self._pair)
        self._pair = None
        if isinstance(weights, Pair):
            self._begin(weights)
            return False
        start_s = self._clock()
        if not self._load(weights):
            return False
        left, self._left = self._left, None
        if weights.adapter_version == left:
            return True  # the canary is gone: what drafted before goes on
        with self._lock:
            self._counts[SWAPPED] += 1
        self._observer.swap_pause(self._clock() - start_s)
        return True

    def take_turn(self, num_rounds: int) -> Turn:
        """Whose weights draft the coming rounds; they are in the drafter then. Decode thread only.

        The canary takes a step where its share allows all of its rounds. The steps after it are the
        control, up to CONTROL_ROUNDS times as many rounds. A pair of which one cannot be loaded is
        over, and the drafter keeps or gets the other where that can be.
        """
        pair = self._pair
        if pair is None or not num_rounds:
            return Turn.ALONE
        self._num_rounds += num_rounds
        turn = Turn.ALONE
        if self._num_canary + num_rounds <= pair.share * self._num_rounds:
            turn = Turn.CANARY
        elif self._num_owed > 0:
            turn = Turn.CONTROL
            self._num_owed -= num_rounds
        if not self._load(pair.canary if turn is Turn.CANARY else pair.base):
            self._pair = None
            if turn is Turn.CANARY:
                self._load(pair.base)
            return Turn.ALONE
        if turn is Turn.CANARY:
            self._num_owed += CONTROL_ROUNDS * num_rounds
            self._num_canary += num_rounds
            self._canary_rounds += num_rounds
        return turn

    def _begin(self, pair: Pair) -> None:
        self._pair = pair
        self._left = pair.base.adapter_version
        self._num_rounds = self._num_canary = self._num_owed = 0

    def _load(self, weights: DraftWeights) -> bool:
        try:
            self._drafter.load(weights)
        except FAULTS:
            logger.exception("adapter version %d not loaded", weights.adapter_version)
            self._broken.add(weights.adapter_version)
            self.count_refused()
            return False
        self._in_use = weights
        self._broken.discard(weights.adapter_version)
        return True

    def counts(self) -> dict[str, int]:
        """Exchanges so far by result: swapped, refused. Any thread."""
        with self._lock:
            return dict(self._counts)
