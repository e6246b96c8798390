"""Looks at live acceptance: ends trials, rolls back a version that accepts less, tells of drift.

Owns the thread and the acts; the arithmetic is in ``dvi.drift``. Runs beside decoding and survives
the trainer: whatever was promoted by whomever, the guard sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dvi.config import DriftConfig
from dvi.decoding.faults import FAULTS
from dvi.drift import GuardRule, LiveAcceptance, compare
from dvi.modeling.threads import set_thread_modes
from dvi.registry import Registry
from serving.background import BackgroundThread
from serving.canary import Canary
from serving.owed import OwedRollbacks
from serving.trainer_status import TrainerStatus

if TYPE_CHECKING:  # river imports scipy, which takes a second: only in the thread that needs it
    from dvi.drift.detector import DomainDetectors, DriftEvent

logger = logging.getLogger(__name__)

INTERVAL_S = 0.5
KINDS = ("data", "engine")
MAX_LOGPROB_GAP = 0.1  # live against recomputed; rounding is below 1e-3


@dataclass(frozen=True, slots=True)
class Links:
    """What the sentinel looks at and whom it tells; all from its own thread."""

    live: LiveAcceptance
    registry: Registry
    owed: OwedRollbacks
    trainer: Callable[[], TrainerStatus]
    look_again: Callable[[], None]  # the registry has changed, or a trial has ended
    drifted: Callable[[], None]  # traffic has changed: learn faster
    told: Callable[[str, float, float], None]  # kind, before, after: for the curves
    canary: Canary | None = None


@dataclass
class SentinelCounts:
    """For /metrics; only grow."""

    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    num_rollbacks: int = 0


class Sentinel(BackgroundThread):
    """One thread, or ``look`` by hand."""

    def __init__(self, config: DriftConfig, links: Links, interval_s: float = INTERVAL_S) -> None:
        super().__init__("sentinel")
        self._config = config
        self._links = links
        self._rule = GuardRule(
            config.guard_confidence, config.guard_min_proposals, config.guard_min_drop
        )
        self._interval_s = interval_s
        self._detectors: DomainDetectors | None = None
        self._probe_level = 0.0  # best probe rate since the last event
        self.counts = SentinelCounts()

    def look(self) -> None:
        """Compare versions, tell the registry, feed the detectors with requests that ended."""
        canary = self._links.canary
        if canary is None or canary.version is None:
            self._guard()
        elif canary.look():
            self._links.look_again()
        if self._links.owed.pay():
            self._links.look_again()
        probe = self._links.trainer().probe_acceptance_rate
        self._probe_level = max(self._probe_level, probe)
        for ended in self._links.live.take_ended():
            event = self._detector().update(ended)
            if event is not None:
                self._tell(event)

    def _guard(self) -> None:
        """Roll back the version that drafts where the one before it accepted more."""
        versions = self._links.live.by_version()
        if len(versions) < 2:
            return
        (old, reference), (new, counts) = list(versions.items())[-2:]
        found = compare(counts, reference)
        owed = self._links.owed
        if not self._rule.is_fall(found) or self._links.registry.current(owed.versions()) != new:
            return
        reason = (
            f"guard: version {new} accepts {found.after:.3f} of {found.tried:.0f} first proposals, "
            f"version {old} {found.before:.3f} ({-found.z:.1f} standard errors)"
        )
        owed.owe(new, reason)
        self.counts.num_rollbacks += 1
        logger.warning("rolled back: %s", reason)

    def _tell(self, event: DriftEvent) -> None:
        kind = self._kind()
        self.counts.events[kind] += 1
        # The tag of the domain is text of a user: it stays out of log and curves.
        logger.warning(
            "drift (%s): acceptance of a domain fell from %.3f to %.3f",
            kind,
            event.before,
            event.after,
        )
        self._links.told(kind, event.before, event.after)
        if kind == "data":
            self._links.drifted()

    def _kind(self) -> str:
        """``engine`` where the draft does worse on unchanged text, or is not the one trained."""
        status = self._links.trainer()
        fell = status.probe_acceptance_rate < self._probe_level - self._config.tolerance
        self._probe_level = status.probe_acceptance_rate
        return "engine" if fell or status.draft_logprob_gap > MAX_LOGPROB_GAP else "data"

    def _detector(self) -> DomainDetectors:
        if self._detectors is None:
            from dvi.drift.detector import DomainDetectors  # see above

            self._detectors = DomainDetectors(self._config)
        return self._detectors

    def _run(self) -> None:
        set_thread_modes(1)
        while not self._stop.wait(self._interval_s):
            try:
                self.look()
            except FAULTS:
                logger.exception("looking at live acceptance failed")
