"""What becomes of trials when people, restarts and faults come between; and when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.config import DriftConfig
from dvi.decoding import AdapterSlot
from dvi.drafting import DraftWeights
from dvi.drift import FirstCounts, TrialCounts, Turn
from dvi.registry import Act, Registry
from serving.canary import Canary
from serving.owed import OwedRollbacks
from serving.watcher import AdapterWatcher
from tests.serving.test_watcher import FakeDrafter, flip_a_byte, publish


class Breakable(FakeDrafter):
    """Fails to load the versions in ``broken``."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[int] = set()

    def load(self, weights: DraftWeights) -> None:
        if weights.adapter_version in self.broken:
            raise RuntimeError("planted")
        super().load(weights)


class Small:
    """Registry, watcher and canary over a drafter that drafts nothing."""

    def __init__(self, root: Path) -> None:
        self.registry = Registry(root)
        self.restart()

    def restart(self) -> None:
        self.drafter = Breakable()
        self.slot = AdapterSlot(self.drafter, lambda: 0.0)
        self.counts = TrialCounts()
        self.owed = OwedRollbacks(self.registry)
        self.canary = Canary(
            self.slot, self.counts, self.registry, self.owed, DriftConfig(), clock=lambda: 0.0
        )
        self.watcher = AdapterWatcher(
            self.registry,
            self.drafter,
            self.slot,
            0.01,
            self.canary,
            passed_over=self.owed.versions,
        )
        self.watcher.load_first()

    def poll(self) -> tuple[int, int | None]:
        """The version in charge and the canary after a look of everybody."""
        self.canary.look()
        self.owed.pay()
        self.watcher.poll()
        self.slot.swap_if_staged()
        return self.slot.adapter_version, self.slot.canary_version

    def show(self, canary: int, base: int, *, hits: bool) -> None:
        """Proposals that decide a trial."""
        for _ in range(20):
            self.counts.add(Turn.CANARY, canary, "a", float(hits))
            self.counts.add(Turn.CONTROL, base, "a", 1.0)


@pytest.fixture
def untrained(tmp_path: Path) -> Small:
    """Version 0 in charge."""
    return Small(tmp_path / "adapters")


@pytest.fixture
def small(untrained: Small) -> Small:
    """Version 1 in charge."""
    publish(untrained.registry)
    assert untrained.poll() == (1, None)
    return untrained


def test_beside_the_untrained_draft_a_version_drafts_all_rounds_at_once(untrained: Small) -> None:
    assert untrained.poll() == (0, None)
    publish(untrained.registry)
    assert untrained.poll() == (1, None)
    untrained.registry.rollback("the guard")
    assert untrained.poll() == (0, None)
    publish(untrained.registry)
    assert untrained.poll() == (2, None)
    untrained.registry.promote(0, "a person")
    publish(untrained.registry)  # both between two looks
    assert untrained.poll() == (2, 3)
    untrained.registry.promote(0, "a person")
    untrained.watcher.poll()  # staged; no round has exchanged it yet
    publish(untrained.registry)
    assert untrained.poll() == (4, None)
    untrained.restart()
    assert untrained.poll() == (4, None)
    events = untrained.registry.history()
    assert [one.version for one in events if one.act is Act.CANARY] == [3]
    assert [one.version for one in events if one.act is Act.SETTLE] == [1, 2, 4]


def test_a_version_that_never_drafted_is_nothing_to_be_tried_beside(untrained: Small) -> None:
    """The drafter fails to load the first: the second is not blamed for it."""
    untrained.drafter.broken = {1}
    publish(untrained.registry)
    assert untrained.poll() == (0, None)
    publish(untrained.registry)
    assert untrained.poll() == (2, None)
    publish(untrained.registry)
    untrained.watcher.poll()
    publish(untrained.registry)
    assert untrained.poll() == (2, 3)


def test_a_restart_that_finds_no_trained_version_beside_the_canary_ends_the_trial(
    small: Small,
) -> None:
    publish(small.registry)
    assert small.poll() == (1, 2)
    flip_a_byte(small.registry.root / "v000001" / "adapter_model.safetensors")
    small.restart()
    assert small.poll() == (2, None)
    last = small.registry.history()[-1]
    assert (last.act, last.version) == (Act.SETTLE, 2)
    publish(small.registry)
    assert small.poll() == (2, 3)
    small.restart()  # it is not passed over as one on trial
    assert small.poll() == (2, 3)


def test_a_restart_in_the_middle_of_a_trial_begins_it_again(small: Small) -> None:
    publish(small.registry)
    assert small.poll() == (1, 2)
    small.show(2, 1, hits=True)
    assert small.poll() == (2, None)
    publish(small.registry)
    assert small.poll() == (2, 3)
    small.restart()
    assert small.slot.adapter_version == 2
    assert small.poll() == (2, 3)
    small.show(3, 2, hits=True)
    assert small.poll() == (3, None)
    small.restart()  # it was decided
    assert small.poll() == (3, None)


def test_of_versions_promoted_during_a_trial_the_newest_waits_for_its_end(small: Small) -> None:
    for _ in range(2):
        publish(small.registry)
        assert small.poll() == (1, 2)
    publish(small.registry)
    assert small.poll() == (1, 2)
    small.show(2, 1, hits=True)
    assert small.poll() == (2, 4)  # 3 is passed over


def test_a_version_that_fails_while_a_newer_one_waits_is_never_returned_to(small: Small) -> None:
    publish(small.registry)
    small.poll()
    publish(small.registry)
    small.show(2, 1, hits=False)
    assert small.poll() == (1, 3)
    assert small.registry.current() == 3
    assert Act.DISMISS in [one.act for one in small.registry.history()]
    small.show(3, 1, hits=False)
    assert small.poll() == (1, None)
    assert small.registry.current() == 1


def test_a_rollback_by_hand_ends_a_trial_at_once_and_promoting_0_too(small: Small) -> None:
    publish(small.registry)
    small.poll()
    small.registry.rollback("a person")
    assert small.poll() == (1, None)
    publish(small.registry)
    small.poll()
    small.show(3, 1, hits=True)
    assert small.poll() == (3, None)
    publish(small.registry)
    assert small.poll() == (3, 4)
    small.registry.promote(0, "a person")
    assert small.poll() == (0, None)
    assert small.canary.view().decisions == {"settled": 1, "rolled_back": 0, "left": 2}


def test_a_version_that_was_in_charge_is_returned_to_without_a_trial(small: Small) -> None:
    for version in (2, 3):
        publish(small.registry)
        small.poll()
        small.show(version, version - 1, hits=True)
        assert small.poll() == (version, None)
    for version in (2, 1):  # one that was a canary, and one that was not
        small.registry.rollback("a person")
        assert small.poll() == (version, None)


def test_history_that_cannot_be_written_stops_no_trial(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left on device")

    publish(small.registry)
    monkeypatch.setattr(small.registry, "note", full)
    assert small.poll() == (1, 2)
    small.show(2, 1, hits=True)
    assert small.poll() == (2, None)


@pytest.mark.parametrize(("hits", "charge"), [(True, 2), (False, 1)])
def test_a_trial_ends_while_the_registry_is_away_and_makes_no_new_one(
    small: Small, tmp_path: Path, hits: bool, charge: int
) -> None:
    publish(small.registry)
    small.poll()
    (tmp_path / "adapters").rename(tmp_path / "away")
    small.show(2, 1, hits=hits)
    assert small.poll() == (charge, None)
    assert not (tmp_path / "adapters").exists()
    (tmp_path / "away").rename(tmp_path / "adapters")
    assert small.poll() == (charge, None)


def test_a_canary_that_the_drafter_cannot_load_is_rolled_back(small: Small) -> None:
    swapped = small.slot.counts()["swapped"]
    publish(small.registry)
    small.poll()
    small.drafter.broken = {2}
    for _ in range(16):
        small.slot.take_turn(1)
    assert small.poll() == (1, None)
    assert small.registry.current() == 1
    assert small.slot.counts() == {"swapped": swapped, "refused": 1}
    assert small.canary.view().canary == FirstCounts()
