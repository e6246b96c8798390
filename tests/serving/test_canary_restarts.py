"""Whatever comes in whatever order, no version takes all rounds from a trained one untried.

And a version that the drafter cannot load is the one that is blamed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dvi.registry import Act
from dvi.registry.history import service_stack
from tests.serving.test_canary_acts import Small
from tests.serving.test_watcher import publish


def full_disk(*_: object) -> None:
    raise OSError("no space left on device")


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """Version 1 in charge."""
    scene = Small(tmp_path / "adapters")
    publish(scene.registry)
    assert scene.poll() == (1, None)
    return scene


def test_a_version_promoted_while_the_server_was_down_is_tried_beside_the_one_before(
    small: Small,
) -> None:
    publish(small.registry)
    publish(small.registry)
    small.restart()
    assert small.slot.adapter_version == 1
    assert small.poll() == (1, 3)
    small.show(3, 1, hits=True)
    assert small.poll() == (3, None)


def test_a_version_that_waits_for_a_trials_end_has_its_own_after_a_restart(small: Small) -> None:
    publish(small.registry)
    assert small.poll() == (1, 2)
    publish(small.registry)
    assert small.poll() == (1, 2)
    small.restart()
    assert small.poll() == (1, 3)


def test_a_version_passed_over_is_tried_when_a_rollback_returns_to_it(small: Small) -> None:
    publish(small.registry)
    small.poll()
    publish(small.registry)
    publish(small.registry)
    small.show(2, 1, hits=True)
    assert small.poll() == (2, 4)  # 3 never drafted
    small.registry.rollback("a person")
    assert small.poll() == (2, 3)
    small.show(3, 2, hits=False)
    assert small.poll() == (2, None)


def test_what_was_rolled_back_drafts_no_round_of_a_trial(tmp_path: Path) -> None:
    """History does not say that 1 is settled: it could not be written."""
    small = Small(tmp_path / "adapters")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.registry, "note", full_disk)
        publish(small.registry)
        assert small.poll() == (1, None)
    publish(small.registry)
    assert small.poll() == (1, 2)
    small.show(2, 1, hits=True)
    assert small.poll() == (2, None)
    small.registry.rollback("the guard")
    assert small.poll() == (1, None)


ACTS = {"promote": 4, "restart": 3, "win": 3, "lose": 2, "roll back": 1, "promote 0": 0.2}


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))]
)
def test_no_version_takes_all_rounds_from_a_trained_one_before_it_won_a_trial(
    tmp_path: Path, seed: int
) -> None:
    """Unless the other was rolled back; whoever promotes and restarts, and whenever."""
    rng = random.Random(seed)
    small = Small(tmp_path / "adapters")
    publish(small.registry)
    charge, canary = small.poll()
    may_draft = {0, charge}  # was in charge, or won its trial
    lost: set[int] = set()
    for _ in range(40):
        (act,) = rng.choices(list(ACTS), list(ACTS.values()))
        if act == "promote":
            publish(small.registry)
        elif act == "restart":
            small.restart()
        elif act == "roll back":
            small.registry.rollback("a person")
        elif act == "promote 0":
            small.registry.promote(0, "a person")
        elif canary is not None:
            small.show(canary, charge, hits=act == "win")
            (may_draft if act == "win" else lost).add(canary)
        stayed = charge != 0 and charge in service_stack(small.registry.history())
        charge, canary = small.poll()
        assert not stayed or charge in may_draft, (seed, act, charge)
        assert charge not in lost
        may_draft.add(charge)
    assert len(may_draft) > 3


def test_a_version_that_cannot_be_loaded_again_is_blamed_and_not_the_canary(small: Small) -> None:
    publish(small.registry)
    assert small.poll() == (1, 2)
    small.drafter.broken = {1}
    for _ in range(16):
        small.slot.take_turn(1)
    assert small.poll() == (2, None)
    last = small.registry.history()[-1]
    assert (last.act, last.version) == (Act.SETTLE, 2)
    assert last.reason.endswith("version 1 cannot be loaded")
    assert small.slot.counts()["refused"] == 1
    publish(small.registry)
    assert small.poll() == (2, 3)


def test_a_version_that_failed_after_a_rollback_to_it_is_nothing_to_be_tried_beside(
    small: Small,
) -> None:
    publish(small.registry)
    small.poll()
    small.show(2, 1, hits=True)
    assert small.poll() == (2, None)
    small.drafter.broken = {1}
    small.registry.rollback("the guard")
    assert small.poll() == (2, None)  # what cannot be loaded cannot draft
    publish(small.registry)
    assert small.poll() == (3, None)
    assert small.registry.current() == 3
    assert not small.slot.is_broken(3)
