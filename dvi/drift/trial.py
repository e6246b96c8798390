"""A canary beside the version that drafts: whose turn a step is, what both arms reached, the rule.

Owns the counts of one trial and the decision; does not know registries, weights or threads. Both
arms are steps of one run of traffic that were planned alike, so that only the weights differ.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dvi.drift.counts import FirstCounts
from dvi.drift.guard import Comparison, GuardRule, compare

# Both arms draft in the same requests, round about: what rounds of a request have in common falls
# on both, so that their difference varies no more than that of independent rounds.
DESIGN_EFFECT = 1.0
# Standard errors from the control. Below the first a canary is in doubt: from there down to the
# guard's limit it waits for more, which is the hysteresis. Above the second it is better, and half
# the proposals will do.
DOUBT_Z = -0.5
BETTER_Z = 1.0


class Turn(StrEnum):
    """Who drafts a step's rounds, and whether they are compared."""

    ALONE = "alone"  # the version in charge; not compared
    CANARY = "canary"
    CONTROL = "control"  # the version in charge, in a step planned like the canary's


class TrialOutcome(StrEnum):
    """What is to be done with a canary."""

    WAIT = "wait"
    SETTLE = "settle"  # it takes all rounds
    ROLL_BACK = "roll_back"


@dataclass(frozen=True, slots=True)
class Arms:
    """First proposals of both, by domain, and how often drafting failed."""

    canary: Mapping[str, FirstCounts] = field(default_factory=dict)
    control: Mapping[str, FirstCounts] = field(default_factory=dict)
    canary_faults: int = 0
    control_faults: int = 0

    def compared(self) -> Comparison:
        """The canary as the new version, the control as the old one."""
        return compare(self.canary, self.control, DESIGN_EFFECT)


@dataclass(frozen=True, slots=True)
class CanaryRule:
    """When a trial ends."""

    guard: GuardRule  # when it has fallen
    min_proposals: int  # first proposals of the canary before it takes over
    max_wait_s: float

    def judge(self, arms: Arms, waited_s: float) -> TrialOutcome:
        """A clear fall ends a trial badly, no sign of a fall well, and time in favour of what is
        seen so far: with nothing seen the gate's word stands and the guard goes on looking.
        """
        if arms.canary_faults > arms.control_faults:
            return TrialOutcome.ROLL_BACK
        found = arms.compared()
        if self.guard.is_fall(found):
            return TrialOutcome.ROLL_BACK
        in_doubt = found.z <= DOUBT_Z and found.drop >= self.guard.min_drop
        if waited_s >= self.max_wait_s:
            return TrialOutcome.ROLL_BACK if in_doubt else TrialOutcome.SETTLE
        wanted = self.min_proposals / 2 if found.z >= BETTER_Z else self.min_proposals
        enough = found.tried >= wanted
        return TrialOutcome.SETTLE if enough and not in_doubt else TrialOutcome.WAIT


class TrialCounts:
    """Counts of the trial that is open, and of all since the start. The decode thread writes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[Turn, int] = {}
        self._counts: dict[Turn, dict[str, FirstCounts]] = {}
        self._faults: dict[Turn, int] = {}
        self._totals = {Turn.CANARY: FirstCounts(), Turn.CONTROL: FirstCounts()}

    def open(self, canary: int, base: int) -> None:
        """Begin at zero; only rounds that these versions drafted count."""
        with self._lock:
            self._versions = {Turn.CANARY: canary, Turn.CONTROL: base}
            self._counts = {Turn.CANARY: {}, Turn.CONTROL: {}}
            self._faults = {Turn.CANARY: 0, Turn.CONTROL: 0}

    def add(self, turn: Turn, version: int, domain: str, hit: float) -> None:
        """One first proposal."""
        with self._lock:
            if self._versions.get(turn) != version:
                return
            own = self._counts[turn]
            own[domain] = own.get(domain, FirstCounts()).plus(hit)
            self._totals[turn] = self._totals[turn].plus(hit)

    def draft_failed(self, turn: Turn) -> None:
        """The drafter failed in a step of this turn."""
        with self._lock:
            if turn in self._faults:
                self._faults[turn] += 1

    def read(self) -> Arms:
        """Of the trial that was opened last."""
        with self._lock:
            return Arms(
                dict(self._counts.get(Turn.CANARY, {})),
                dict(self._counts.get(Turn.CONTROL, {})),
                self._faults.get(Turn.CANARY, 0),
                self._faults.get(Turn.CONTROL, 0),
            )

    def totals(self) -> Mapping[Turn, FirstCounts]:
        """Of all trials; they only grow."""
        with self._lock:
            return dict(self._totals)
