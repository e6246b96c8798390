"""Live acceptance at the first proposed position, by adapter version and by domain tag.

Owns the counts that versions and stretches of traffic are compared by. Only the first position:
deeper ones and chosen lengths would measure the controller. Does not know what follows from a
difference. The decode thread writes, any thread reads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dvi.drift.counts import FirstCounts
from dvi.drift.trial import TrialCounts, Turn
from dvi.types import Round, Source

OTHER = "other"
MAX_DOMAINS = 16  # told apart; the rest is OTHER
MAX_NAMES = 1024  # counted while they wait for a place; then all start again
MAX_VERSIONS = 4
WINDOW = 1024  # proposals of a version and domain, then halved: old traffic fades
MAX_ENDED = 4096  # requests that nobody took yet

Key = tuple[str, int]  # request id and choice index


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One finished choice with at least one neural proposal."""

    domain: str
    counts: FirstCounts


class BusyDomains:
    """The busiest tags by requests; one twice as busy as the idlest holder takes its place."""

    def __init__(self, most: int = MAX_DOMAINS) -> None:
        self._most = most
        self._held: dict[str, int] = {}
        self._waiting: dict[str, int] = {}

    def name(self, domain: str) -> str:
        """The tag itself where it has a place, else OTHER."""
        return domain if domain in self._held else OTHER

    def request_ended(self, domain: str) -> None:
        """Count one request."""
        if domain in self._held or len(self._held) < self._most:
            self._held[domain] = self._held.get(domain, 0) + 1
            return
        if len(self._waiting) >= MAX_NAMES:
            self._waiting.clear()
        self._waiting[domain] = self._waiting.get(domain, 0) + 1
        idlest = min(self._held, key=self._held.__getitem__)
        if self._waiting[domain] > 2 * self._held[idlest]:
            del self._held[idlest]
            self._held[domain] = self._waiting.pop(domain)


class LiveAcceptance:
    """What the newest versions reached, and the requests that ended since somebody asked.

    ``trial`` has the two arms of a canary's trial.
    """

    def __init__(self) -> None:
        self.trial = TrialCounts()
        self._lock = threading.Lock()
        self._domains = BusyDomains()
        self._versions: dict[int, dict[str, FirstCounts]] = {}  # last used last
        self._open: dict[Key, FirstCounts] = {}
        self._ended: deque[EndedRequest] = deque(maxlen=MAX_ENDED)

    def round_done(self, key: Key, domain: str, round_: Round, turn: Turn = Turn.ALONE) -> None:
        """Count one round; only a neural proposal says something.

        What a canary does says nothing of the traffic: it stays out of the request's counts.
        """
        if round_.source is not Source.NEURAL or not round_.proposed_ids:
            return
        hit = float(round_.num_accepted > 0)
        with self._lock:
            own = self._versions.pop(round_.adapter_version, {})
            self._versions[round_.adapter_version] = own
            if len(self._versions) > MAX_VERSIONS:
                del self._versions[next(iter(self._versions))]
            name = self._domains.name(domain)
            own[name] = _faded(own.get(name, FirstCounts()), hit)
            if turn is not Turn.CANARY:
                self._open[key] = self._open.get(key, FirstCounts()).plus(hit)
        self.trial.add(turn, round_.adapter_version, name, hit)

    def request_done(self, key: Key, domain: str) -> None:
        """A choice ended."""
        with self._lock:
            counts = self._open.pop(key, None)
            self._domains.request_ended(domain)
            if counts is not None:
                self._ended.append(EndedRequest(self._domains.name(domain), counts))

    def keep_only(self, running: Collection[Key]) -> None:
        """Forget choices that ended outside a round, by a cancel say."""
        with self._lock:
            for key in self._open.keys() - running:
                del self._open[key]

    def by_version(self) -> dict[int, Mapping[str, FirstCounts]]:
        """Counts by domain of the newest versions, the one that drafted last at the end."""
        with self._lock:
            return {version: dict(counts) for version, counts in self._versions.items()}

    def take_ended(self) -> list[EndedRequest]:
        """Requests that ended since the last call, oldest first; one caller."""
        with self._lock:
            taken = list(self._ended)
            self._ended.clear()
        return taken


def _faded(counts: FirstCounts, hit: float) -> FirstCounts:
    scale = 0.5 if counts.tried >= WINDOW else 1.0
    return FirstCounts(counts.tried * scale, counts.accepted * scale).plus(hit)
