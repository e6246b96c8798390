"""The background loop: pays its debt, waits for what is broken outside, tells what it does."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from dvi.replay import ReplayStoreError
from dvi.tracking import MetricRow, Sink, SinkThread, Tracker
from dvi.types import Trace
from tests.trainers.conftest import WorldMaker
from tests.trainers.world import World
from trainers.follow import Follower
from trainers.reports import StepReport
from trainers.status import StatusFile, read_status
from trainers.stream import replay_stream
from trainers.training import Publication, Training
from trainers.watch import Outlets, Watch


class Recorder:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, dict[str, float]]] = []
        self.folders: list[Path] = []

    def log(self, family: str, row: dict[str, float]) -> None:
        self.rows.append((family, dict(row)))

    def artifact(self, version: int, folder: Path) -> None:
        self.folders.append(folder)


class Loop:
    """A follower whose turns the test takes itself."""

    def __init__(self, world: World) -> None:
        self.training: Training = world.training()
        self.tracker = Recorder()
        self.status = world.folder / "trainer" / "status.json"
        outlets = Outlets(StatusFile(self.status), self.tracker, world.registry)  # type: ignore[arg-type]
        self.watch = Watch(self.training, outlets)
        self.follower = Follower(self.training, self.watch, poll_interval_s=0.01)

    def until_idle(self) -> None:
        for _ in range(500):
            if not self.follower.turn():
                return
        raise AssertionError("never idle")


def test_each_trace_pays_for_its_steps_and_then_the_loop_is_idle(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    loop = Loop(world_of("world", traces[:10], steps_per_trace=1.5))
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == 15
    assert loop.training.debt_steps == 0
    assert not loop.follower.turn()
    loop.training.parts.rows.store.append("w", traces[10:12])
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == 18


def test_a_trainer_that_traffic_outruns_owes_a_bounded_number_of_steps(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.training.MIN_PAYING_TRACES", 4)
    world = world_of("world", traces, steps_per_trace=1.5, newest_rows=5, reservoir_rows=2)
    training = world.training()
    assert training.take_new(3) == 3
    assert training.debt_steps == 4.5
    while training.take_new(3):
        pass
    assert training.debt_steps == 7 * 1.5  # as many traces as the memory holds, not all 22


def test_an_empty_store_is_waited_at_quietly(
    world_of: WorldMaker, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(world_of("world", []))
    with caplog.at_level(logging.INFO):
        assert not loop.follower.turn()
    assert caplog.records == []


def test_a_store_that_fails_stops_nothing_and_is_said_once(
    world_of: WorldMaker,
    traces: list[Trace],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop(world_of("world", traces))
    store = loop.training.parts.rows.store
    assert loop.follower.turn()

    def locked(*_arguments: object) -> None:
        raise ReplayStoreError("replay store: database is locked")

    for name in ("read", "load", "set_kept"):
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            caplog.clear()
            patch.setattr(store, name, locked)
            for _ in range(5):
                loop.follower.turn()
        assert len(caplog.records) <= 1
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == len(traces)
    assert loop.training.parts.intake.num_admitted == len(traces)


def test_a_full_disk_stops_no_step_from_counting_once(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(world_of("world", traces))

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(loop.training.parts.checkpoints, "save", full)
        for _ in range(12):
            loop.follower.turn()
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == len(traces)


def test_status_and_rows_tell_steps_gate_and_losses(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    loop = Loop(world)
    loop.watch.start()
    loop.until_idle()
    loop.watch.tell(at_once=True)
    told = read_status(loop.status)
    counters = loop.training.counters()
    assert told["steps"] == counters.steps == len(traces)
    gate = {"promoted": counters.promoted, "held": counters.held, "refused": 0, "rolled_back": 0}
    assert told["gate"] == gate
    assert told["cpu_seconds"] > 0
    weights = world.config.objective
    weighted = weights.kl_weight * told["kl"] + weights.ce_weight * told["ce"]
    assert told["loss"] == pytest.approx(weighted, rel=1e-5)  # float32 sums
    assert told["version"] == world.registry.versions()[-1].version
    assert 0 < told["draft_logprob_gap"] < 1e-4  # version 0 drafted what the first gate held out
    steps = [row["train/step"] for family, row in loop.tracker.rows if family == "train"]
    assert steps == list(range(1, len(traces) + 1))
    versions = [row["adapter/version"] for family, row in loop.tracker.rows if family == "adapter"]
    assert versions == [manifest.version for manifest in world.registry.versions()]
    assert len(loop.tracker.folders) == counters.promoted
    assert all((folder / "manifest.json").is_file() for folder in loop.tracker.folders)


def test_a_rollback_is_counted(world_of: WorldMaker, traces: list[Trace]) -> None:
    world = world_of("world", traces[:4])
    loop = Loop(world)
    for first in range(4, 16, 3):  # three held-out traces and three steps: a gate each
        world.store.append("w", traces[first : first + 3])
        loop.until_idle()
    assert world.registry.current() > 0
    world.registry.rollback("a person")
    world.store.append("w", traces[16:19])
    loop.until_idle()
    assert loop.watch.num_rolled_back == 1


def test_told_to_stop_it_saves_and_goes_on_from_there(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    loop = Loop(world)
    stop = threading.Event()
    thread = threading.Thread(target=loop.follower.run, args=(stop,))
    thread.start()
    deadline = time.monotonic() + 60
    while loop.training.parts.learner.num_steps < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    resumed = world.training()
    assert resumed.parts.learner.num_steps == loop.training.parts.learner.num_steps >= 4
    rest = [item for item in replay_stream(resumed) if isinstance(item, StepReport)]
    assert rest[-1].step == len(traces)


def test_a_tracker_that_cannot_write_stops_nothing(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    class Broken(Sink):
        name = "broken"
        errors = (OSError,)

        def open(self) -> None: ...

        def write(self, row: MetricRow) -> None:
            raise OSError("disk full")

        def close(self) -> None: ...

    world = world_of("world", traces[:8])
    training = world.training()
    thread = SinkThread(Broken())
    thread.start()
    with Tracker([thread]) as tracker:
        outlets = Outlets(StatusFile(world.folder / "s" / "status.json"), tracker, world.registry)
        follower = Follower(training, Watch(training, outlets), 0.01)
        while follower.turn():
            pass
    assert training.parts.learner.num_steps == 8
    assert not isinstance(training.last_report, Publication)
