"""What can go wrong around a running server: one function a fault, each puts right what it did.

Owns the doing and undoing; does not check anything. Each takes at most HOLD_S and then some.
"""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.soak.plant import Plant

HOLD_S = 8.0  # longer than a transaction waits for a lock

Fault = Callable[[Plant], None]


def kill_trainer(plant: Plant) -> None:
    """Kill -9."""
    _signal_trainer(plant, signal.SIGKILL)


def kill_server(plant: Plant) -> None:
    """Kill -9, then another on the same state folder."""
    plant.kill_and_start()


def stop_trainer(plant: Plant) -> None:
    """Hangs for a while, as on a dead disk."""
    _signal_trainer(plant, signal.SIGSTOP)
    time.sleep(HOLD_S)
    _signal_trainer(plant, signal.SIGCONT)


def corrupt_newest_adapter(plant: Plant) -> None:
    """One bit, as a disk does it."""
    files = sorted((plant.state / "adapters").glob("v*/adapter_model.safetensors"))
    if files:
        _flip_bit(files[-1])


def corrupt_newest_checkpoint(plant: Plant) -> None:
    """One bit, and a trainer that has to read it."""
    files = sorted((plant.state / "trainer").glob("checkpoint-*"))
    if files:
        _flip_bit(files[-1])
    _signal_trainer(plant, signal.SIGKILL)


def tear_pointer(plant: Plant) -> None:
    """CURRENT half written."""
    pointer = plant.state / "adapters" / "CURRENT"
    if pointer.exists():
        pointer.write_bytes(b"1")


def lock_database(plant: Plant) -> None:
    """Another program writes and does not end."""
    connection = sqlite3.connect(plant.state / "replay.sqlite", isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(HOLD_S)
    connection.execute("ROLLBACK")
    connection.close()


def remove_database(plant: Plant) -> None:
    """Somebody clears up."""
    for path in plant.state.glob("replay.sqlite*"):
        path.unlink(missing_ok=True)


def hide_registry(plant: Plant) -> None:
    """Its disk is away and comes back."""
    root, away = plant.state / "adapters", plant.state / "adapters-away"
    if root.is_dir():
        root.rename(away)
        time.sleep(HOLD_S)
        away.rename(root)


def make_read_only(plant: Plant) -> None:
    """No file can be made or replaced anywhere in the state folder."""
    folders = [plant.state, *(path for path in plant.state.rglob("*") if path.is_dir())]
    for folder in folders:
        with suppress(FileNotFoundError):  # a version that was pruned meanwhile
            folder.chmod(0o500)
    time.sleep(HOLD_S)
    for folder in folders:
        with suppress(FileNotFoundError):
            folder.chmod(0o700)


def fill_disk(plant: Plant) -> None:
    """No file of the server grows beyond 64 KiB."""
    pids = [plant.pid, plant.trainer_pid()]
    for limit in (64 << 10, resource.RLIM_INFINITY):
        for pid in filter(None, pids):
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        if limit != resource.RLIM_INFINITY:
            time.sleep(HOLD_S)


FAULTS: tuple[Fault, ...] = (
    kill_trainer,
    make_read_only,
    kill_server,
    corrupt_newest_adapter,
    lock_database,
    hide_registry,
    corrupt_newest_checkpoint,
    fill_disk,
    remove_database,
    tear_pointer,
    stop_trainer,
)


def _signal_trainer(plant: Plant, number: int) -> None:
    pid = plant.trainer_pid()
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
