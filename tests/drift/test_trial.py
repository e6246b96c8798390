"""The rule of a canary's trial: whom it stops, how soon, how rarely it errs, and when it ends."""

from __future__ import annotations

import numpy as np
import pytest

from dvi.drift import (
    Arms,
    CanaryRule,
    FirstCounts,
    GuardRule,
    LiveAcceptance,
    TrialCounts,
    TrialOutcome,
    Turn,
)
from dvi.types import Round, Source

RULE = CanaryRule(GuardRule(0.999, 8, 0.05), min_proposals=16, max_wait_s=300.0)  # the defaults
SETTLE, ROLL_BACK, WAIT = TrialOutcome.SETTLE, TrialOutcome.ROLL_BACK, TrialOutcome.WAIT


def arms(canary: tuple[int, int], control: tuple[int, int], **faults: int) -> Arms:
    return Arms({"a": FirstCounts(*canary)}, {"a": FirstCounts(*control)}, **faults)


def test_no_sign_of_a_fall_settles_with_enough_seen_and_not_before() -> None:
    assert RULE.judge(arms((15, 9), (30, 18)), 1.0) is WAIT
    assert RULE.judge(arms((16, 10), (32, 20)), 1.0) is SETTLE


def test_a_better_canary_settles_with_half() -> None:
    assert RULE.judge(arms((7, 7), (14, 4)), 1.0) is WAIT
    assert RULE.judge(arms((8, 8), (16, 4)), 1.0) is SETTLE


def test_a_clear_fall_rolls_back_and_a_doubtful_one_waits() -> None:
    assert RULE.judge(arms((16, 0), (32, 20)), 1.0) is ROLL_BACK
    assert RULE.judge(arms((7, 0), (14, 14)), 1.0) is WAIT  # too few for any word
    assert RULE.judge(arms((32, 14), (64, 38)), 1.0) is WAIT  # .44 of .59: 1.4 standard errors


def test_a_fall_that_is_nothing_does_not_hold_a_canary_up() -> None:
    found = arms((4000, 2320), (8000, 4800))  # .58 of .60, more than two standard errors
    assert found.compared().z < -2
    assert RULE.judge(found, 1.0) is SETTLE


def test_time_decides_for_what_is_seen_so_far() -> None:
    """Low traffic stalls nothing: the gate's word stands unless there is a sign against it."""
    assert RULE.judge(Arms(), 299.0) is WAIT
    assert RULE.judge(Arms(), 300.0) is SETTLE
    assert RULE.judge(arms((3, 2), (6, 4)), 300.0) is SETTLE
    assert RULE.judge(arms((5, 0), (10, 6)), 300.0) is ROLL_BACK
    assert RULE.judge(arms((32, 14), (64, 38)), 300.0) is ROLL_BACK


def test_a_draft_that_fails_where_the_other_does_not_is_rolled_back_at_once() -> None:
    assert RULE.judge(arms((0, 0), (0, 0), canary_faults=1), 0.0) is ROLL_BACK
    both = arms((0, 0), (0, 0), canary_faults=1, control_faults=1)
    assert RULE.judge(both, 0.0) is WAIT


def test_domains_are_compared_with_themselves() -> None:
    """A canary that met more of the hard domain is not worse for it."""
    canary = {"easy": FirstCounts(4, 4), "hard": FirstCounts(20, 2)}
    control = {"easy": FirstCounts(40, 40), "hard": FirstCounts(20, 2)}
    assert RULE.judge(Arms(canary, control), 1.0) is SETTLE


def trial(rng: np.random.Generator, new: float, old: float) -> tuple[TrialOutcome, int]:
    """Looks after each proposal of the canary and the two of the control that go with it."""
    hits = control = 0
    for tried in range(1, 401):
        hits += rng.random() < new
        control += int(rng.binomial(2, old))
        outcome = RULE.judge(arms((tried, hits), (2 * tried, control)), 0.0)
        if outcome is not WAIT:
            return outcome, tried
    return WAIT, 400


def outcomes(new: float, old: float, num: int = 200) -> list[tuple[TrialOutcome, int]]:
    rng = np.random.default_rng(int(1000 * old + 10 * new))
    return [trial(rng, new, old) for _ in range(num)]


@pytest.mark.parametrize("rate", [0.2, 0.4, 0.6, 0.8])
def test_an_equal_version_is_hardly_ever_rolled_back(rate: float) -> None:
    """Of 400 trials 1% on average, however often one looks: 2.5% is three deviations above."""
    found = outcomes(rate, rate, 400)
    assert sum(one is ROLL_BACK for one, _ in found) <= 10
    assert sum(one is SETTLE for one, _ in found) >= 385
    assert np.median([tried for _, tried in found]) <= 16


@pytest.mark.parametrize("rate", [0.4, 0.6, 0.8])
def test_a_useless_version_never_gets_through_and_goes_soon(rate: float) -> None:
    """25 proposals of the canary are 200 rounds at one in eight."""
    found = outcomes(0.02, rate)
    assert all(one is ROLL_BACK for one, _ in found)
    assert np.percentile([tried for _, tried in found], 75) <= 25


def test_half_the_acceptance_is_rolled_back_nine_times_in_ten() -> None:
    found = outcomes(0.3, 0.6)
    assert sum(one is ROLL_BACK for one, _ in found) >= 0.85 * len(found)
    assert np.percentile([tried for one, tried in found if one is ROLL_BACK], 90) <= 80


def test_only_rounds_of_the_two_versions_on_their_turns_count() -> None:
    live = LiveAcceptance()
    live.request_done(("first", 0), "a")
    live.trial.open(canary=4, base=3)

    def round_done(turn: Turn, version: int, accepted: int, source: Source = Source.NEURAL) -> None:
        live.round_done(("r", 0), "a", Round(source, version, (1,), (-1.0,), accepted), turn)

    round_done(Turn.CANARY, 4, 0)
    round_done(Turn.CONTROL, 3, 1)
    round_done(Turn.ALONE, 3, 1)
    round_done(Turn.CONTROL, 2, 1)  # staged, but not yet taken by the decode thread
    round_done(Turn.CANARY, 4, 1, Source.MEMORY)
    found = live.trial.read()
    assert found.canary == {"a": FirstCounts(1, 0)}
    assert found.control == {"a": FirstCounts(1, 1)}
    live.request_done(("r", 0), "a")
    live.take_ended()
    assert live.by_version()[3]["a"] == FirstCounts(2, 2)
    live.trial.open(canary=5, base=3)
    assert live.trial.read() == Arms()
    assert live.trial.totals()[Turn.CONTROL] == FirstCounts(1, 1)


def test_a_canary_says_nothing_of_the_traffic() -> None:
    """Drift is a fall of what the version in charge reaches."""
    live = LiveAcceptance()
    live.request_done(("first", 0), "a")
    for turn, accepted in ((Turn.ALONE, 1), (Turn.CANARY, 0), (Turn.CONTROL, 1)):
        live.round_done(("r", 0), "a", Round(Source.NEURAL, 1, (1,), (-1.0,), accepted), turn)
    live.request_done(("r", 0), "a")
    (ended,) = live.take_ended()
    assert ended.counts == FirstCounts(2, 2)


def test_faults_count_for_the_arm_whose_turn_it_was() -> None:
    counts = TrialCounts()
    counts.draft_failed(Turn.CANARY)  # no trial is open
    counts.open(canary=2, base=1)
    for turn in (Turn.CANARY, Turn.ALONE, Turn.CONTROL, Turn.CANARY):
        counts.draft_failed(turn)
    found = counts.read()
    assert (found.canary_faults, found.control_faults) == (2, 1)
