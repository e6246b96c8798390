"""Several machines on one PostgreSQL and one folder of adapters: one trains, another takes over."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.io import dump_config
from dvi.registry import Registry
from dvi.replay import ReplayStore, lease, open_store
from dvi.types import Trace
from tests.postgres import Cluster
from tests.trainers.processes import CONTEXT, DEADLINE_S, kill, make_model, run_service, stop
from tests.trainers.world import tiny_config
from trainers import lease as waiting
from trainers.checkpoint import Checkpoint, CheckpointStore
from trainers.status import read_status

LEASE_S = 1.5  # the real one is 10 s; all its parts are as much shorter


def run_machine(config_path: str, log_path: str, url: str) -> None:
    """Target of a trainer's process: as on a machine of its own, and less patient."""
    os.environ["DVI_REPLAY_URL"] = url
    lease.LEASE_S, lease.TRUST_S = LEASE_S, LEASE_S / 2
    waiting.RENEW_S, waiting.LOOK_INTERVAL_S = LEASE_S / 5, LEASE_S / 10
    run_service(config_path, log_path)


@dataclass
class Machine:
    """A state folder of its own; store and adapters are everybody's."""

    folder: Path
    config: DviConfig
    url: str

    def start(self) -> ForkServerProcess:
        """Its trainer."""
        dump_config(self.config, self.folder / "config.json")
        arguments = (str(self.folder / "config.json"), str(self.folder / "log.txt"), self.url)
        process = CONTEXT.Process(target=run_machine, args=arguments)
        process.start()
        return process

    def steps(self) -> float:
        """Optimizer steps by its own status; 0 while it stands by."""
        return read_status(self.folder / "trainer" / "status.json").get("steps", 0.0)

    def said(self) -> str:
        """Its log."""
        path = self.folder / "log.txt"
        return path.read_text() if path.is_file() else ""


@dataclass
class Fleet:
    """Two machines and what they share."""

    machines: tuple[Machine, Machine]
    shared: Path
    store: ReplayStore
    running: list[ForkServerProcess]

    def start(self, number: int) -> ForkServerProcess:
        """Start a machine's trainer."""
        process = self.machines[number].start()
        self.running.append(process)
        return process

    def checkpoint(self) -> Checkpoint | None:
        """The newest one, whoever wrote it."""
        return CheckpointStore(self.shared / "trainer").load()[0]


def wait_until(what: Callable[[], object], timeout_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trace]]:
    folder = tmp_path_factory.mktemp("model")
    return folder, make_model(folder, 24)


@pytest.fixture
def fleet(
    tmp_path: Path, database: str, model: tuple[Path, list[Trace]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Fleet]:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    CONTEXT.set_forkserver_preload(["tests.trainers.processes", "tests.trainers.test_machines"])
    shared, machines = tmp_path / "shared", []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        config = tiny_config(folder, newest_rows=200, steps_per_trace=2.0)
        config = replace(config, model=replace(config.model, path=str(model[0]), device="cpu"))
        config = replace(config, registry=replace(config.registry, path=str(shared)))
        machines.append(Machine(folder, config, database))
    with open_store(database, machines[0].config.replay) as store:
        world = Fleet((machines[0], machines[1]), shared, store, [])
        yield world
        for process in world.running:
            if process.is_alive():
                kill(process)


def assert_each_row_once(fleet: Fleet, num_rows: int) -> None:
    """Every trace entered the trainer's memory once, whichever machine admitted it."""
    checkpoint = fleet.checkpoint()
    assert checkpoint is not None
    intake = checkpoint.intake
    rows = Counter([*intake.memory.newest, *intake.memory.reservoir, *intake.holdout])
    assert set(rows.values()) == {1}
    assert len(rows) == intake.num_admitted == num_rows
    done = checkpoint.counters.steps + checkpoint.counters.dropped_steps
    assert done + checkpoint.debt_steps == 2 * num_rows


def test_one_trains_and_after_its_kill_the_other_goes_on_where_it_stopped(
    fleet: Fleet, model: tuple[Path, list[Trace]]
) -> None:
    one, two = fleet.machines
    traces = model[1]
    fleet.store.append("server-1", traces[:6])
    fleet.store.append("server-2", traces[6:12])
    first = fleet.start(0)
    wait_until(lambda: one.steps() >= 24)
    second = fleet.start(1)
    wait_until(lambda: "standing by" in two.said())
    fleet.store.append("server-1", traces[12:16])
    wait_until(lambda: one.steps() >= 32)
    assert two.steps() == 0
    kill(first)
    killed_s = time.monotonic()
    wait_until(lambda: "this machine trains" in two.said())
    # The lease and one look; what is beyond is the scheduler of a busy machine.
    assert LEASE_S * 0.8 - 0.3 <= time.monotonic() - killed_s <= LEASE_S + 5
    fleet.store.append("server-2", traces[16:])
    wait_until(lambda: two.steps() >= 48)
    assert stop(second) == 0
    assert_each_row_once(fleet, len(traces))
    ids = {m.metrics["training_id"] for m in Registry(fleet.shared).versions()}
    assert len(ids) == 1  # one training, not two that started from nothing


@pytest.mark.slow
def test_a_trainer_that_stood_still_does_not_write_into_the_other_ones_work(
    fleet: Fleet, model: tuple[Path, list[Trace]]
) -> None:
    one, two = fleet.machines
    fleet.store.append("server-1", model[1][:12])
    first = fleet.start(0)
    wait_until(lambda: one.steps() >= 24)
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    second = fleet.start(1)
    wait_until(lambda: "this machine trains" in two.said())
    fleet.store.append("server-2", model[1][12:])
    os.kill(first.pid, signal.SIGCONT)
    wait_until(lambda: not first.is_alive())
    assert first.exitcode == 1
    assert "another machine has taken over" in one.said()
    wait_until(lambda: two.steps() >= 48)
    assert stop(second) == 0
    assert_each_row_once(fleet, 24)


@pytest.mark.slow
def test_the_trainer_waits_while_the_database_is_away_and_goes_on(
    fleet: Fleet, model: tuple[Path, list[Trace]], cluster: Cluster
) -> None:
    one = fleet.machines[0]
    fleet.store.append("server-1", model[1][:12])
    first = fleet.start(0)
    wait_until(lambda: one.steps() >= 24)
    cluster.stop()
    try:
        wait_until(lambda: "lease not renewed" in one.said())
        wait_until(lambda: "waiting: " in one.said())
    finally:
        cluster.start()
    fleet.store.append("server-1", model[1][12:])
    wait_until(lambda: one.steps() >= 48)
    assert stop(first) == 0
    assert_each_row_once(fleet, 24)
