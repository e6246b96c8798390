"""What steps really cost beside what the profile says, from the steps that are taken.

Owns the running medians; reads no clock. A wrong scale changes no decision, a wrong shape does: so
each kind of step is compared with the plain step shortly before it, under the same load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from dvi.decoding.costs import FAR_OFF, CostProfile
from dvi.decoding.lengths import StepCosts

NUM_SAMPLES = 31
NEAR_STEPS = 8  # a plain step so many steps ago was under the same load
LEAST_SAMPLES = 9  # fewer say nothing: more than one plain step is needed
REMEMBERED_STEPS = 4096  # what was seen longer ago may have been another load
# Proposals a session up to which steps are of one kind; 0 is plain.
WIDTH_STEPS = (0, 2, 4)
LEAST_FACTOR, MOST_FACTOR = 0.5, 3.0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step without prompt chunks."""

    batch: int
    sampled: bool  # any of its sessions draws
    num_proposals: int  # verified, of all sessions
    num_draft_steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sample:
    """One ratio to the plain step before."""

    step: int
    ratio: float


Key = tuple[int, bool, int]  # batch, sampled, kind of width; -1 instead of it: draft steps


class Pace:
    """Corrects a measured profile while decoding. Decode thread only.

    ``on_stale`` is called once, when plain steps show that the profile was taken on a busy machine.
    """

    def __init__(self, profile: CostProfile, on_stale: Callable[[], None]) -> None:
        self._profile = profile
        self._on_stale = on_stale
        self._is_stale = False
        self._step = 0
        self._plain: dict[tuple[int, bool], Sample] = {}  # by batch, sampled: the newest
        self._plain_ratios: deque[float] = deque(maxlen=NUM_SAMPLES)
        self._samples: dict[Key, deque[Sample]] = {}

    def book(self, step: TimedStep) -> None:
        """Take one step into account."""
        self._step += 1
        pass_s = self._profile.pass_s(step.batch, step.batch + step.num_proposals)
        group = (step.batch, step.sampled)
        if not step.num_proposals and not step.num_draft_steps:
            ratio = step.seconds / pass_s
            self._plain[group] = Sample(self._step, ratio)
            self._plain_ratios.append(ratio)
            self._notice_stale()
            return
        plain = self._plain.get(group)
        if plain is None or plain.step < self._step - NEAR_STEPS or plain.ratio <= 0:
            return
        seconds = step.seconds / plain.ratio
        kind = width_kind(step.num_proposals, step.batch)
        if not step.num_draft_steps:
            self._add((*group, kind), seconds / pass_s)
            return
        draft_s = step.num_draft_steps * self._profile.draft_s(step.batch)
        if draft_s > 0:
            spent_s = seconds - pass_s * self._factor((*group, kind))
            self._add((*group, -1), spent_s / draft_s)

    def corrected(self, costs: StepCosts, batch: int, *, sampled: bool) -> StepCosts:
        """``costs`` of ``batch`` sessions as steps show them; plain ones are the measure."""
        factors = [self._factor((batch, sampled, kind)) for kind in range(len(WIDTH_STEPS) + 1)]
        draft = self._factor((batch, sampled, -1))
        if set(factors) == {1.0} and draft == 1.0:
            return costs
        passes = [
            seconds * factors[width_kind(more, batch)] for more, seconds in enumerate(costs.passes)
        ]
        return StepCosts(passes, costs.draft_step_s * draft)

    def _add(self, key: Key, ratio: float) -> None:
        self._samples.setdefault(key, deque(maxlen=NUM_SAMPLES)).append(Sample(self._step, ratio))

    def _factor(self, key: Key) -> float:
        samples = self._samples.get(key, ())
        known = [one.ratio for one in samples if one.step > self._step - REMEMBERED_STEPS]
        if len(known) < LEAST_SAMPLES:
            return 1.0
        return min(max(median(known), LEAST_FACTOR), MOST_FACTOR)

    def _notice_stale(self) -> None:
        """What disturbs a measurement only ever adds, so steps that are far faster than the record
        prove it wrong. Slower ones may be load, or a long context.
        """
        is_full = len(self._plain_ratios) == NUM_SAMPLES
        if is_full and not self._is_stale and median(self._plain_ratios) * FAR_OFF < 1:
            self._is_stale = True
            self._on_stale()


def width_kind(num_proposals: int, batch: int) -> int:
    """Which steps cost alike: by proposals a session."""
    return sum(num_proposals > step * batch for step in WIDTH_STEPS)
