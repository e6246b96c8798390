"""Whether training pays: the decode time that it saves, over the CPU time that it takes.

Owns the estimate and the share of the steps that follows from it; does not know how drafts are
scored, nor what a step is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dvi.types import Source, Trace
from trainers.gate import accepted_length
from trainers.scoring import Score

SPAN = 8  # gates between the two versions that are compared
SMOOTHING = 0.2  # weight of the newest comparison: eight traces of one gate say little
LEAST_SHARE = 1 / 8  # of the steps, where training does not pay: enough to notice when it does


def saved_share(traces: Sequence[Trace], before: Score, after: Score, draft_len: int) -> float:
    """Share of decode rounds that ``after`` saves over ``before``, both scored on ``traces``.

    Only of rounds in which the memory did not propose: in those a draft changes nothing. Below 0
    where it is worse.
    """
    rounds = [one for trace in traces for one in trace.rounds]
    tokens = sum(1 + one.num_accepted for one in rounds)
    own = sum(1 + one.num_accepted for one in rounds if one.source is not Source.MEMORY)
    if not tokens:
        return 0.0
    lengths = [accepted_length(score.hits, draft_len) for score in (before, after)]
    return own / tokens * (1 - lengths[0] / lengths[1])


@dataclass(frozen=True, slots=True)
class _Gate:
    version: int  # in service after it
    cpu_s: float  # spent until then


class Payback:
    """What training saves within ``horizon_s`` seconds of decoding, per second of CPU. One thread.

    The version in service is compared, on traces that no step has seen, with the one in service
    SPAN gates ago. The server is taken to decode all the time: where it does not, training takes
    what nobody else wants.
    """

    def __init__(
        self, horizon_s: float, cpu_clock: Callable[[], float], *, is_free: bool = False
    ) -> None:
        self._horizon_s = horizon_s
        self._cpu_clock = cpu_clock
        self._is_free = is_free  # the trainer takes only time that nobody else wants
        self.forget()

    def forget(self) -> None:
        """Traffic has changed: what training saved before says nothing of what it saves now."""
        self.ratio: float | None = None  # saved over spent; None while it is not known
        self._gates: deque[_Gate] = deque(maxlen=SPAN + 1)
        self._start_s = self._cpu_clock()

    @property
    def earlier_version(self) -> int | None:
        """The version to score beside the one in service; None before the second gate."""
        return self._gates[0].version if self._gates else None

    @property
    def share(self) -> float:
        """Of the steps that traces pay for, in (0, 1]: what is to be done."""
        if self._is_free or not self._horizon_s or self.ratio is None or self.ratio >= 1:
            return 1.0
        return LEAST_SHARE

    def gated(self, before: int, after: int, saved: float | None) -> None:
        """A gate found version ``before`` in service and left ``after``.

        ``saved`` is the share that ``before`` saves over ``earlier_version``; None where that could
        not be scored.
        """
        if not self._gates:
            self._gates.append(_Gate(before, self._start_s))
        spent_s = self._gates[-1].cpu_s - self._gates[0].cpu_s
        if saved is not None and spent_s > 0:
            ratio = saved * self._horizon_s / spent_s
            last = ratio if self.ratio is None else self.ratio
            self.ratio = last + SMOOTHING * (ratio - last)
        self._gates.append(_Gate(after, self._cpu_clock()))
