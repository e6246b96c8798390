"""The sentinel: bad versions leave service, drift is told apart, counted and passed on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dvi.config import DriftConfig
from dvi.drift import LiveAcceptance
from dvi.registry import Act, Registry
from dvi.types import Round, Source
from serving.owed import OwedRollbacks
from serving.sentinel import Links, Sentinel
from serving.trainer_status import TrainerStatus
from tests.registry.fakes import Files, fields


def publish(registry: Registry) -> None:
    """One more version, put into service."""
    registry.promote(registry.publish(Files(), fields()), "test")


class Scene:
    """A registry, live counts and a sentinel that notes what it does."""

    def __init__(self, root: Path) -> None:
        self.registry = Registry(root)
        self.live = LiveAcceptance()
        self.status = TrainerStatus(probe_acceptance_rate=0.5)
        self.told: list[tuple[str, float, float]] = []
        self.woken = self.drifts = 0
        links = Links(
            live=self.live,
            registry=self.registry,
            owed=OwedRollbacks(self.registry),
            trainer=lambda: self.status,
            look_again=self._wake,
            drifted=self._drift,
            told=lambda kind, before, after: self.told.append((kind, before, after)),
        )
        self.sentinel = Sentinel(DriftConfig(), links)
        self._rng = np.random.default_rng(0)
        self._num_requests = 0

    def _wake(self) -> None:
        self.woken += 1

    def _drift(self) -> None:
        self.drifts += 1

    def serve(self, rate: float, rounds: int, domain: str = "a") -> int:
        """Requests of 10 rounds drafted by the version in service; looks after each.

        Returns rounds until the version changed, or all of them.
        """
        version = self.registry.current()
        for done in range(0, rounds, 10):
            key = (f"r{self._num_requests}", 0)
            self._num_requests += 1
            for _ in range(10):
                hit = int(self._rng.random() < rate)
                self.live.round_done(key, domain, Round(Source.NEURAL, version, (1,), (), hit))
            self.live.request_done(key, domain)
            self.sentinel.look()
            if self.registry.current() != version:
                return done + 10
        return rounds


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "adapters")


def test_twenty_planted_bad_versions_are_rolled_back_within_200_rounds(scene: Scene) -> None:
    publish(scene.registry)
    good = scene.registry.current()
    scene.serve(0.6, 300)
    for number in range(20):
        publish(scene.registry)
        planted = scene.registry.current()
        assert scene.serve(0.02, 200) < 200
        assert scene.registry.current() == good
        event = scene.registry.history()[-1]
        assert (event.act, event.replaced) == (Act.ROLLBACK, planted)
        assert f"guard: version {planted} accepts 0." in event.reason
        assert scene.sentinel.counts.num_rollbacks == scene.woken == number + 1
        scene.serve(0.6, 100)


def test_a_version_as_good_stays(scene: Scene) -> None:
    publish(scene.registry)
    scene.serve(0.6, 300)
    publish(scene.registry)
    better = scene.registry.current()
    scene.serve(0.6, 600)
    assert scene.registry.current() == better
    assert scene.sentinel.counts.num_rollbacks == 0


def test_a_new_domain_accuses_no_version(scene: Scene) -> None:
    publish(scene.registry)
    scene.serve(0.8, 300, "old")
    publish(scene.registry)
    newest = scene.registry.current()
    scene.serve(0.02, 300, "new")
    assert scene.registry.current() == newest


def test_what_somebody_else_took_out_is_not_rolled_back_again(scene: Scene) -> None:
    publish(scene.registry)
    scene.serve(0.6, 300)
    publish(scene.registry)
    bad = scene.registry.current()
    scene.registry.rollback("a person")
    acts = len(scene.registry.history())
    for _ in range(100):  # rounds that were under way
        scene.live.round_done(("x", 0), "a", Round(Source.NEURAL, bad, (1,), (), 0))
    scene.sentinel.look()
    assert len(scene.registry.history()) == acts


def test_the_guard_can_be_switched_off(scene: Scene) -> None:
    scene.sentinel = Sentinel(DriftConfig(guard_confidence=0.0), scene.sentinel._links)
    publish(scene.registry)
    scene.serve(0.6, 300)
    publish(scene.registry)
    assert scene.serve(0.0, 300) == 300


def drift(scene: Scene) -> None:
    """One version all along: the traffic changes."""
    scene.serve(0.6, 600)
    scene.serve(0.1, 300)


def test_a_fall_with_a_steady_probe_is_data_drift_and_hurries_the_trainer(scene: Scene) -> None:
    drift(scene)
    assert scene.sentinel.counts.events == {"data": 1, "engine": 0}
    ((kind, before, after),) = scene.told
    assert kind == "data"
    assert before > 0.5
    assert after < 0.4
    assert scene.drifts == 1


@pytest.mark.parametrize(
    "status",
    [
        TrainerStatus(probe_acceptance_rate=0.3),  # worse on text that never changes
        TrainerStatus(probe_acceptance_rate=0.5, draft_logprob_gap=0.4),  # not the trained draft
    ],
)
def test_a_fall_that_is_the_drafts_own_is_decay_of_the_engine(
    scene: Scene, status: TrainerStatus
) -> None:
    scene.serve(0.6, 600)
    scene.status = status
    scene.serve(0.1, 300)
    assert scene.sentinel.counts.events == {"data": 0, "engine": 1}
    assert scene.drifts == 0


def test_the_thread_looks_by_itself(scene: Scene) -> None:
    links = scene.sentinel._links
    publish(scene.registry)
    scene.serve(0.6, 300)
    publish(scene.registry)
    bad = scene.registry.current()
    for _ in range(100):
        scene.live.round_done(("x", 0), "a", Round(Source.NEURAL, bad, (1,), (), 0))
    with Sentinel(DriftConfig(), links, interval_s=0.01) as sentinel:
        for _ in range(1000):
            if sentinel.counts.num_rollbacks:
                break
            sentinel._stop.wait(0.01)
    assert scene.registry.current() != bad
