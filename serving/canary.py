"""A new version's trial beside the one that drafts, from its first round to its end.

Owns which versions are staged and the acts that a trial ends with; the arithmetic is in
``dvi.drift``. The watcher's thread begins, the sentinel's looks; the decode thread only exchanges
references. Does not know which version comes next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dvi.config import DriftConfig
from dvi.decoding import AdapterSlot, Pair
from dvi.drafting import DraftWeights
from dvi.drift import Arms, CanaryRule, FirstCounts, GuardRule, TrialCounts, TrialOutcome, Turn
from dvi.registry import Act, Registry, RegistryError
from dvi.registry.history import is_settled
from serving.owed import OwedRollbacks

logger = logging.getLogger(__name__)

SETTLED = "settled"
ROLLED_BACK = "rolled_back"
LEFT = "left"
DECISIONS = (SETTLED, ROLLED_BACK, LEFT)


@dataclass(frozen=True, slots=True)
class CanaryView:
    """For /metrics; counts only grow."""

    version: int = 0  # 0: no trial
    rounds: int = 0  # drafted by canaries
    decisions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DECISIONS, 0))
    canary: FirstCounts = field(default_factory=FirstCounts)  # first proposals of all trials
    control: FirstCounts = field(default_factory=FirstCounts)


@dataclass(frozen=True, slots=True)
class _Trial:
    pair: Pair
    started_s: float


def canary_rule(config: DriftConfig) -> CanaryRule:
    """As configured; a clear fall needs half the proposals that taking over does."""
    fewest = (config.canary_min_proposals + 1) // 2
    guard = GuardRule(config.guard_confidence, fewest, config.guard_min_drop)
    return CanaryRule(guard, config.canary_min_proposals, config.canary_max_wait_s)


class Canary:
    """What is staged: one version for all rounds, or two that draft by turns. Any thread."""

    def __init__(
        self,
        slot: AdapterSlot,
        counts: TrialCounts,
        registry: Registry,
        owed: OwedRollbacks,
        config: DriftConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slot = slot
        self._counts = counts
        self._registry = registry
        self._owed = owed
        self._rule = canary_rule(config)
        self.share = config.canary_share
        self._clock = clock
        self._lock = threading.Lock()
        self._trial: _Trial | None = None
        self._main: DraftWeights | None = None
        self._decisions = dict.fromkeys(DECISIONS, 0)

    @property
    def main(self) -> DraftWeights | None:
        """What drafts all rounds, or all but the canary's; None: version 0 from the start."""
        return self._main

    @property
    def base(self) -> DraftWeights | None:
        """What a new version is tried beside; None while the untrained draft is in charge.

        There is little to lose beside that one, and every round of a trial delays what was learned
        first: the guard compares the two. The slot is asked too: what was staged last may not have
        drafted yet, or the drafter failed to load it.
        """
        main = self._main
        if main is None or 0 in (main.adapter_version, self._slot.adapter_version):
            return None
        return None if self._slot.is_broken(main.adapter_version) else main

    @property
    def version(self) -> int | None:
        """The canary, None where no trial runs."""
        trial = self._trial
        return None if trial is None else trial.pair.canary.adapter_version

    def loaded(self, weights: DraftWeights) -> None:
        """The drafter was given these before decoding started."""
        self._main = weights
        self._write_settled(weights.adapter_version)

    def stage(self, weights: DraftWeights) -> None:
        """All rounds to this version, without a trial; one that runs is over, undecided."""
        with self._lock:
            self._leave()
            self._main = weights
            self._slot.stage(weights)
            self._write_settled(weights.adapter_version)

    def begin(self, weights: DraftWeights, main: DraftWeights) -> None:
        """Let ``weights`` draft their share of rounds beside ``main``, which drafts now.

        A trial that runs is over, undecided.
        """
        with self._lock:
            self._leave()
            self._main = main
            pair = Pair(weights, main, self.share)
            self._counts.open(weights.adapter_version, main.adapter_version)
            self._trial = _Trial(pair, self._clock())
            self._slot.stage(pair)
            self._note(
                Act.CANARY,
                weights.adapter_version,
                f"drafts {self.share:.3g} of rounds, version {main.adapter_version} the others",
            )

    def look(self) -> bool:
        """Decide on the trial if there is one; True if it ended."""
        with self._lock:
            trial = self._trial
            if trial is None:
                return False
            outcome, reason = self._judge(trial)
            if outcome is TrialOutcome.WAIT:
                return False
            if outcome is TrialOutcome.SETTLE:
                self._settle(trial.pair.canary, reason)
            else:
                self._roll_back(trial.pair, reason)
            return True

    def view(self) -> CanaryView:
        """A snapshot."""
        totals = self._counts.totals()
        return CanaryView(
            version=self.version or 0,
            rounds=self._slot.canary_rounds,
            decisions=dict(self._decisions),
            canary=totals[Turn.CANARY],
            control=totals[Turn.CONTROL],
        )

    def _judge(self, trial: _Trial) -> tuple[TrialOutcome, str]:
        """By what both reached, but a version that cannot be loaded loses; and the reason."""
        arms = self._counts.read()
        waited_s = self._clock() - trial.started_s
        outcome = self._rule.judge(arms, waited_s)
        reason = describe(trial.pair, arms, waited_s)
        for loser, then in (
            (trial.pair.base, TrialOutcome.SETTLE),
            (trial.pair.canary, TrialOutcome.ROLL_BACK),
        ):
            if self._slot.is_broken(loser.adapter_version):
                outcome = then
                reason += f"; version {loser.adapter_version} cannot be loaded"
        return outcome, reason

    def _settle(self, weights: DraftWeights, reason: str) -> None:
        self._end(SETTLED, reason)
        self._main = weights
        self._slot.stage(weights)
        self._note(Act.SETTLE, weights.adapter_version, reason)

    def _roll_back(self, pair: Pair, reason: str) -> None:
        """First the rounds, then the registry: whether it can be told now is nobody's concern."""
        self._end(ROLLED_BACK, reason)
        self._slot.stage(pair.base)
        self._owed.owe(pair.canary.adapter_version, f"canary: {reason}")

    def _leave(self) -> None:
        if self._trial is not None:
            self._end(LEFT, "another version was put into service")

    def _end(self, decision: str, reason: str) -> None:
        assert self._trial is not None
        version = self._trial.pair.canary.adapter_version
        self._trial = None
        self._decisions[decision] += 1
        level = logging.WARNING if decision == ROLLED_BACK else logging.INFO
        logger.log(level, "canary %d %s: %s", version, decision.replace("_", " "), reason)

    def _write_settled(self, version: int) -> None:
        """A version that drafts all rounds without a trial: a restart would give it one."""
        if not is_settled(self._registry.history(), version):
            self._note(
                Act.SETTLE, version, "drafts all rounds: no trained version to be tried beside"
            )

    def _note(self, act: Act, version: int, reason: str) -> None:
        """History is for people and for a restart; decoding goes on without it."""
        try:
            self._registry.note(act, version, f"canary: {reason}")
        except (OSError, RegistryError) as error:
            logger.warning("%s of version %d not written down: %s", act.value, version, error)


def describe(pair: Pair, arms: Arms, waited_s: float) -> str:
    """The numbers that a decision rests on; one line."""
    found = arms.compared()
    line = (
        f"version {pair.canary.adapter_version} accepts {found.after:.3f} of "
        f"{found.tried:.0f} first proposals, version {pair.base.adapter_version} "
        f"{found.before:.3f} in the same traffic ({found.z:+.1f} standard errors, {waited_s:.0f} s)"
    )
    if arms.canary_faults:
        line += f"; its draft failed {arms.canary_faults} times"
    return line
