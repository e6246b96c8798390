"""Alarms about falling acceptance, one Page-Hinkley detector a domain (river).

Owns detectors and their restart; does not know why acceptance falls. Only falls: a draft that
learns makes acceptance rise all the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from river.drift import PageHinkley

from dvi.config.learning import DriftConfig
from dvi.drift.live import EndedRequest
from dvi.metrics import TokenAverage


@dataclass(frozen=True, slots=True)
class DriftEvent:
    """Acceptance at the first position fell."""

    domain: str
    before: float  # mean over the requests since the detector started
    after: float  # mean over about the newest RECENT requests


RECENT = 5.0


class DomainDetectors:
    """Fed with one finished request after the other. One thread."""

    def __init__(self, config: DriftConfig) -> None:
        self._config = config
        self._domains: dict[str, _Watched] = {}

    def update(self, ended: EndedRequest) -> DriftEvent | None:
        """Take one request's acceptance; an event where its domain's detector fires."""
        watched = self._domains.setdefault(ended.domain, _Watched(self._config))
        rate = ended.counts.accepted / ended.counts.tried
        before, after = watched.add(rate)
        if not watched.fired:
            return None
        self._domains[ended.domain] = _Watched(self._config)  # the new level is the usual one
        return DriftEvent(ended.domain, before, after)


class _Watched:
    """One detector and the two means of an event."""

    def __init__(self, config: DriftConfig) -> None:
        self._detector = PageHinkley(
            min_instances=config.min_requests,
            delta=config.tolerance,
            threshold=config.threshold,
            mode="down",
        )
        self._sum = 0.0
        self._num = 0
        self._recent = TokenAverage(RECENT)

    @property
    def fired(self) -> bool:
        """The last request made the alarm."""
        return bool(self._detector.drift_detected)

    def add(self, rate: float) -> tuple[float, float]:
        """Count one request; the mean before it and the recent mean with it."""
        before = self._sum / self._num if self._num else rate
        self._sum += rate
        self._num += 1
        self._recent.update(1.0, rate)
        self._detector.update(rate)
        return before, self._recent.value or 0.0
