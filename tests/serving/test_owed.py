"""Rollbacks that the registry cannot be told: kept, tried again, and never drafted against."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from dvi.config import DriftConfig
from dvi.decoding import AdapterSlot
from dvi.drift import LiveAcceptance
from dvi.registry import Act, Registry, files
from dvi.types import Round, Source
from serving.owed import OwedRollbacks
from serving.sentinel import Links, Sentinel
from serving.trainer_status import TrainerStatus
from serving.watcher import AdapterWatcher
from tests.serving.test_canary_acts import Small
from tests.serving.test_watcher import FakeDrafter, publish

Fault = Callable[[Registry], AbstractContextManager[None]]


@contextmanager
def locked(registry: Registry) -> Iterator[None]:
    """By another process."""
    with files.exclusive(registry.root / ".lock"):
        yield


@contextmanager
def away(registry: Registry) -> Iterator[None]:
    """Its disk is not there."""
    elsewhere = registry.root.with_name("elsewhere")
    registry.root.rename(elsewhere)
    yield
    elsewhere.rename(registry.root)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


@contextmanager
def full(registry: Registry) -> Iterator[None]:
    """No line can be written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_record", full_disk)
        yield


@contextmanager
def full_in_the_middle(registry: Registry) -> Iterator[None]:
    """The act is written down, and the pointer cannot be moved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_point_to", full_disk)
        yield


FAULTS = (locked, away, full, full_in_the_middle)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.005)


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """Version 1 in charge, 2 on trial."""
    scene = Small(tmp_path / "adapters")
    publish(scene.registry)
    assert scene.poll() == (1, None)
    publish(scene.registry)
    assert scene.poll() == (1, 2)
    return scene


def acts_on(registry: Registry, version: int) -> list[Act]:
    """Rollbacks of it and dismissals."""
    events = registry.history()
    return [
        one.act
        for one in events
        if (one.act is Act.ROLLBACK and one.replaced == version)
        or (one.act is Act.DISMISS and one.version == version)
    ]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Levels of the lines about what is owed."""
    return [one.levelname for one in caplog.records if one.name == "serving.owed"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_canary_stays_out_and_the_registry_gets_to_know_when_it_can_be_told(
    small: Small, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    """So does a second server of that registry, which has no traffic to judge it by."""
    other = Small(small.registry.root)
    assert other.poll() == (1, 2)
    small.show(2, 1, hits=False)
    caplog.set_level(logging.INFO, "serving.owed")
    with fault(small.registry):
        for _ in range(20):
            assert small.poll() == (1, None)
            assert small.owed.versions() == {2}
            assert other.poll() == (1, 2)
        assert said(caplog) == ["WARNING"]
        assert len(caplog.records) <= 5  # of all that looked twenty times
    assert Registry(small.registry.root).current() == 2  # for those who were not told
    assert small.poll() == (1, None)
    assert small.owed.versions() == frozenset()
    assert small.registry.current() == 1
    assert acts_on(small.registry, 2) == [Act.ROLLBACK]
    assert said(caplog) == ["WARNING", "INFO"]
    assert other.poll() == (1, None)
    small.restart()
    assert small.poll() == (1, None)


@pytest.mark.parametrize("fault", FAULTS)
def test_of_several_that_are_owed_no_rollback_goes_to_another(small: Small, fault: Fault) -> None:
    publish(small.registry)
    small.show(2, 1, hits=False)
    with fault(small.registry):
        charge, canary = small.poll()
        if canary == 3:  # its trial can begin while the registry can be read
            small.show(3, 1, hits=False)
            assert small.poll() == (1, None)
        assert charge == 1
        assert small.owed.versions()
    charge, canary = small.poll()
    if canary == 3:
        small.show(3, 1, hits=False)
        small.poll()
    assert small.poll() == (1, None)
    assert small.registry.current() == 1
    assert small.owed.versions() == frozenset()


def test_what_a_person_took_out_meanwhile_is_not_taken_out_again(small: Small) -> None:
    small.show(2, 1, hits=False)
    with locked(small.registry):
        small.poll()
    small.registry.rollback("a person")
    assert small.poll() == (1, None)
    assert acts_on(small.registry, 2) == [Act.ROLLBACK]
    assert small.owed.versions() == frozenset()


def test_an_empty_folder_in_the_registrys_place_is_not_told(small: Small) -> None:
    """A disk that is not mounted: what is owed is for the folder that knows the version."""
    small.show(2, 1, hits=False)
    with away(small.registry):
        small.registry.root.mkdir()
        small.canary.look()
        assert not small.owed.pay()
        (small.registry.root / ".lock").unlink()
        small.registry.root.rmdir()
    assert small.poll() == (1, None)
    assert small.registry.current() == 1


def test_a_version_that_the_guard_takes_out_drafts_no_more_while_the_registry_is_locked(
    tmp_path: Path,
) -> None:
    registry, live, drafter = Registry(tmp_path / "adapters"), LiveAcceptance(), FakeDrafter()
    slot, owed = AdapterSlot(drafter, lambda: 0.0), OwedRollbacks(registry)
    watcher = AdapterWatcher(registry, drafter, slot, 1.0, passed_over=owed.versions)
    sentinel = Sentinel(
        DriftConfig(),
        Links(
            live=live,
            registry=registry,
            owed=owed,
            trainer=TrainerStatus,
            look_again=watcher.poll,
            drifted=lambda: None,
            told=lambda *_: None,
        ),
    )

    def drafting() -> int:
        """After a look of everybody and 100 rounds: version 1 accepts, version 2 does not."""
        sentinel.look()
        watcher.poll()
        slot.swap_if_staged()
        version = drafter.adapter_version
        one = Round(Source.NEURAL, version, (1,), (), int(version == 1))
        for _ in range(100):
            live.round_done(("x", 0), "a", one)
        return version

    publish(registry)
    assert drafting() == 1
    publish(registry)
    assert drafting() == 2
    with locked(registry):
        for _ in range(3):
            assert drafting() == 1
        assert registry.current() == 2
        assert watcher.in_service == 1
    assert drafting() == 1
    assert registry.current() == 1
    assert sentinel.counts.num_rollbacks == 1
    assert acts_on(registry, 2) == [Act.ROLLBACK]
