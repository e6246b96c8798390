"""The trainer as a process: killed, stopped, orphaned, started twice, started too early."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.io import dump_config
from dvi.replay import default_url, open_store
from dvi.types import Trace
from tests.trainers.processes import (
    ServiceWorld,
    kill,
    make_model,
    make_service_world,
    stop,
)
from trainers.background import wait_for_store
from trainers.checkpoint import Checkpoint, CheckpointStore
from trainers.process import PARENT_VARIABLE
from trainers.service import main, priority_of

NUM_TRACES = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Trace]]:
    """A tiny checkpoint and its traces."""
    folder = tmp_path_factory.mktemp("model")
    return folder, make_model(folder, NUM_TRACES)


@pytest.fixture
def service(
    tmp_path: Path, model: tuple[Path, list[Trace]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServiceWorld]:
    """A state folder of its own; every row fits into the newest ones, so that none is sampled."""
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    world = make_service_world(tmp_path / "state", model[0], newest_rows=200, steps_per_trace=2.0)
    yield world
    world.store.close()


def newest_checkpoint(world: ServiceWorld) -> Checkpoint | None:
    return CheckpointStore(world.trainer_dir).load()[0]


def files(world: ServiceWorld) -> set[Path]:
    """Checkpoints there are."""
    return set(world.trainer_dir.glob("checkpoint-*"))


def has_new_file(world: ServiceWorld, before: set[Path]) -> bool:
    """Whether a checkpoint was written since."""
    return not files(world) <= before


def assert_sound(world: ServiceWorld) -> None:
    """What must hold after any kill: registry and checkpoint load, and agree on every version."""
    checkpoint = newest_checkpoint(world)
    known = {(e.step, e.parent) for e in checkpoint.lineage} if checkpoint else set()
    for manifest in world.registry.versions():
        world.registry.read(manifest.version)
        assert (manifest.checkpoint_step, manifest.parent) in known
    current = world.registry.current()
    assert current == 0 or current in {m.version for m in world.registry.versions()}


def kill_rounds(service: ServiceWorld, traces: list[Trace], rounds: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    share = len(traces) // (rounds + 1)
    for number in range(rounds):
        service.store.append("w", traces[number * share : (number + 1) * share])
        before = files(service)
        process = service.start()
        if before and rng.random() < 0.3:  # any moment, start and resume included
            time.sleep(rng.uniform(0.0, 1.0))
        else:
            service.wait_for(partial(has_new_file, service, before), process)
            time.sleep(rng.uniform(0.0, 0.5))
        kill(process)
        assert_sound(service)
    service.store.append("w", traces[rounds * share :])
    process = service.start()
    paid = 2 * len(traces)
    service.wait_for(lambda: service.status().get("steps", 0) >= paid, process)
    assert stop(process) == 0
    assert_sound(service)
    assert_each_row_once(service, traces)


def assert_each_row_once(service: ServiceWorld, traces: list[Trace]) -> None:
    """No committed trace lost, none admitted twice, every step paid for and counted once."""
    checkpoint = newest_checkpoint(service)
    assert checkpoint is not None
    intake = checkpoint.intake
    rows = Counter([*intake.memory.newest, *intake.memory.reservoir, *intake.holdout])
    assert set(rows.values()) == {1}
    assert sorted(key.seq for key in rows) == list(range(1, len(traces) + 1))
    assert intake.num_admitted == len(traces)
    done = checkpoint.counters.steps + checkpoint.counters.dropped_steps
    assert done + checkpoint.debt_steps == 2 * len(traces)
    assert checkpoint.debt_steps < 1
    assert service.registry.versions()


def test_kill_nine_at_random_points_loses_and_doubles_nothing(
    service: ServiceWorld, model: tuple[Path, list[Trace]]
) -> None:
    kill_rounds(service, model[1], rounds=3, seed=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_kill_nine_ten_times_loses_and_doubles_nothing(
    service: ServiceWorld, model: tuple[Path, list[Trace]], seed: int
) -> None:
    kill_rounds(service, model[1], rounds=10, seed=seed)


def test_a_second_trainer_waits_for_the_first_and_takes_over_after_its_kill(
    service: ServiceWorld, model: tuple[Path, list[Trace]]
) -> None:
    service.store.append("w", model[1][:8])
    first = service.start()
    service.wait_for(lambda: service.status().get("steps", 0) >= 1, first)
    second = service.start()
    time.sleep(0.5)
    assert service.status()["pid"] == first.pid
    kill(first)
    service.wait_for(lambda: service.status()["pid"] == second.pid, second)
    service.wait_for(lambda: service.status()["steps"] >= 16, second)
    assert stop(second) == 0


def test_the_trainer_waits_for_a_store_that_does_not_exist_yet(
    service: ServiceWorld, model: tuple[Path, list[Trace]]
) -> None:
    service.store.close()
    for path in service.folder.glob("replay.sqlite*"):
        path.unlink()
    process = service.start()
    time.sleep(1.0)
    assert process.is_alive()
    assert not (service.folder / "replay.sqlite").exists()
    with open_store(default_url(service.folder), service.config.replay) as store:
        store.append("w", model[1][:6])
        service.wait_for(lambda: service.status().get("steps", 0) >= 12, process)
    assert stop(process) == 0


def test_a_checkpoint_of_another_model_is_refused_with_status_two(
    service: ServiceWorld, model: tuple[Path, list[Trace]]
) -> None:
    service.store.append("w", model[1][:4])
    process = service.start()
    service.wait_for(lambda: service.status().get("steps", 0) >= 8, process)
    assert stop(process) == 0
    service.config = replace(service.config, drafter=replace(service.config.drafter, lora_rank=5))
    process = service.start()
    process.join(60)
    assert process.exitcode == 2
    lines = service.log_path.read_text().splitlines()
    assert "checkpoint was made with drafter" in lines[-1]
    assert not any("Traceback" in line for line in lines)


def test_wrong_configs_end_with_status_two_and_one_line(
    service: ServiceWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 2
    assert main([str(tmp_path / "none.json")]) == 2


def test_waiting_for_a_store_ends_when_told_to_stop(service: ServiceWorld, tmp_path: Path) -> None:
    class Stop:
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > 3

        def wait(self, _seconds: float) -> None: ...

    config = replace(service.config, state_dir=str(tmp_path / "nowhere"))
    assert wait_for_store(config, Stop()) is None  # type: ignore[arg-type]


PARENT = """
    import subprocess, sys
    child = subprocess.Popen([sys.executable, "-m", "trainers.service", sys.argv[1]])
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_command_trains_at_the_lowest_priority_and_dies_with_its_parent(
    service: ServiceWorld, model: tuple[Path, list[Trace]]
) -> None:
    service.config.trainer.priority = "idle"
    service.store.append("w", model[1][:6])
    dump_config(service.config, service.config_path)
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(service.config_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_until(lambda: is_low(child))
    if os.sched_getscheduler(child) == os.SCHED_IDLE:  # else this test waits for a free core
        os.sched_setscheduler(child, os.SCHED_OTHER, os.sched_param(0))
    wait_until(lambda: service.status().get("steps", 0) >= 12)
    parent.kill()
    parent.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists() or is_zombie(child))
    checkpoint = newest_checkpoint(service)
    assert checkpoint is not None
    assert checkpoint.counters.steps == 12  # saved on the way out: SIGTERM, not SIGKILL
    assert (service.folder / "metrics.jsonl").is_file()


def test_a_trainer_whose_parent_died_while_it_started_trains_nothing(
    service: ServiceWorld, model: tuple[Path, list[Trace]]
) -> None:
    service.store.append("w", model[1][:6])
    dump_config(service.config, service.config_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    done = subprocess.run(
        [sys.executable, "-m", "trainers.service", str(service.config_path)],
        env={**os.environ, PARENT_VARIABLE: str(gone.pid)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert newest_checkpoint(service) is None
    assert service.status() == {}


def is_low(pid: int) -> bool:
    """Whether the process runs at the lowest priority there is."""
    nicest = os.getpriority(os.PRIO_PROCESS, pid) == 19
    return nicest or os.sched_getscheduler(pid) == os.SCHED_IDLE


def is_zombie(pid: int) -> bool:
    return ") Z " in Path(f"/proc/{pid}/stat").read_text()


def wait_until(what, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("drafter", "asked", "taken"),
    [
        ("auto", None, "idle"),
        ("block", None, "low"),
        ("model", None, "low"),
        ("auto", "low", "low"),
    ],
)
def test_a_draft_beside_a_memory_waits_for_idle_cores_unless_told(
    drafter: str, asked: str | None, taken: str
) -> None:
    config = DviConfig()
    config.drafter.kind, config.trainer.priority = drafter, asked
    assert priority_of(config) == taken
