"""Trainer processes on a tiny model folder, to be killed.

Owns start, kill and waiting. Processes are real and forked from a server that has imported
everything once: a start then costs half a second instead of ten.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.io import dump_config
from dvi.modeling.loading import load_target
from dvi.registry import Registry
from dvi.replay import ReplayStore, default_url, open_store
from dvi.types import Trace
from tests.rigs import make_model_folder
from tests.trainers.world import live_traces, tiny_config
from trainers import service
from trainers.status import read_status

DEADLINE_S = 120.0  # of anything waited for; it takes a second on a free core
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["tests.trainers.processes", "tests.trainers.two_ranks", "accelerate"]
)


def run_service(config_path: str, log_path: str) -> None:
    """Target of the process: the entry point itself, its exit status as the process's."""
    with Path(log_path).open("ab") as log:
        os.dup2(log.fileno(), 2)
    raise SystemExit(service.main([config_path]))


@dataclass
class ServiceWorld:
    """A state folder with a store, and the config that a trainer is started with."""

    folder: Path
    config: DviConfig
    store: ReplayStore
    registry: Registry

    @property
    def config_path(self) -> Path:
        """The file that a trainer is started with."""
        return self.folder / "config.json"

    @property
    def log_path(self) -> Path:
        """What the trainer says on stderr."""
        return self.folder / "log.txt"

    @property
    def trainer_dir(self) -> Path:
        """Checkpoints, status, lock."""
        return self.folder / "trainer"

    def start(self) -> ForkServerProcess:
        """A trainer process."""
        dump_config(self.config, self.config_path)
        arguments = (str(self.config_path), str(self.log_path))
        process = CONTEXT.Process(target=run_service, args=arguments)
        process.start()
        return process

    def status(self) -> dict[str, float]:
        """What the trainer last told."""
        return read_status(self.trainer_dir / "status.json")

    def wait_for(self, what: Callable[[], bool], process: ForkServerProcess) -> None:
        """Wait while the process lives."""
        deadline = time.monotonic() + DEADLINE_S
        while not what():
            assert process.is_alive(), f"trainer ended with {process.exitcode}"
            assert time.monotonic() < deadline, f"too slow: {self.status()}"
            time.sleep(0.005)


def make_service_world(folder: Path, model: Path, **trainer: object) -> ServiceWorld:
    """A world with an empty store; status is told at every step's end that is a second later."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(folder, **trainer)
    config = replace(config, model=replace(config.model, path=str(model), device="cpu"))
    store = open_store(default_url(folder), config.replay)
    return ServiceWorld(folder, config, store, Registry(folder / "adapters"))


def make_model(folder: Path, count: int) -> list[Trace]:
    """A tiny checkpoint in ``folder`` and traces of its answers."""
    make_model_folder(folder)
    config = tiny_config(folder)
    target = load_target(
        folder,
        replace(config.model, device="cpu"),
        config.drafter.exit_layer,
        deterministic=False,
        layers="all",
        max_context_len=256,
    )
    return live_traces(target, count, max_tokens=8)


def kill(process: ForkServerProcess) -> None:
    """Kill -9 and wait."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(DEADLINE_S)


def stop(process: ForkServerProcess) -> int | None:
    """SIGTERM and wait; the exit status."""
    process.terminate()
    process.join(DEADLINE_S)
    return process.exitcode
