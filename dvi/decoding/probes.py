"""When a source that does not pay is tried again, so that it can recover.

Owns the turns; reads no clock and does not know why a source is not used.
"""

from __future__ import annotations

from collections.abc import Sequence

from dvi.types import Source

PROBE_LEN = 2  # proposals of a probe: the first says whether, the second how far
# What a probe may cost in plain passes of one session. At one in 64 that is 1% of the time; a
# dearer one comes the more seldom.
PROBE_PASSES = 0.64

Kind = tuple[Source, int]  # a source, for requests of one kind (``heat``)


class Probes:
    """Counts session rounds without a source, for each kind of request apart: what pays for greedy
    requests says little of sampled ones.
    """

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._unused: dict[Kind, int] = {}
        self._num_probes = 0

    def used(self, kind: Kind) -> None:
        """A session of this kind proposes from the source anyway."""
        self._unused[kind] = 0

    def prober(self, kind: Kind, able: Sequence[int], dearness: float) -> int | None:
        """Which of the sessions that could use an unused source tries it now; in turns.

        ``able`` are their indices, ``dearness`` the plain passes of a session that a probe costs.
        """
        unused = self._unused.get(kind, 0) + len(able)
        self._unused[kind] = unused
        if not able or unused < self._interval * max(1.0, dearness / PROBE_PASSES):
            return None
        self._unused[kind] = 0
        self._num_probes += 1
        return able[self._num_probes % len(able)]
