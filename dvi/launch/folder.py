"""The run folder: one for each launch, made by rank 0, found by the other ranks.

Owns its name and its mode; does not know what is written into it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.files import replace_file
from dvi.config.home import runs_dir
from dvi.config.validate import ConfigError

_WAIT_S = 60.0  # a rank that starts late imports torch first: seconds, not minutes
_STALE_S = 600.0  # a pointer further from now belongs to an earlier launch of the same parent


def launch_rank(env: Mapping[str, str]) -> int:
    """Rank of this process in its launch (accelerate, torchrun); 0 where there is only one."""
    return int(env.get("RANK", env.get("LOCAL_RANK", "0")))


def _is_many(env: Mapping[str, str]) -> bool:
    return int(env.get("WORLD_SIZE", "1")) > 1


def _make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def _given_folder(config: DviConfig, rank: int) -> Path:
    folder = Path(config.run.dir or "")
    if rank == 0 and not config.run.resume and folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"run.dir {folder} is not empty: give run.resume=true to go on in it, or another folder"
        )
    return _make(folder)


def _pointer(command: str, env: Mapping[str, str]) -> Path:
    """Same for all ranks of a launch on one file system, different for two launches at once."""
    port, launch = env.get("MASTER_PORT", "0"), env.get("TORCHELASTIC_RUN_ID", "none")
    address = env.get("MASTER_ADDR", "localhost")
    local = os.getppid() if address in ("localhost", "127.0.0.1") else 0
    return runs_dir() / command / f".launch-{address}-{port}-{launch}-{local}"


def _wait_for(pointer: Path) -> Path:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        if pointer.is_file() and abs(time.time() - pointer.stat().st_mtime) < _STALE_S:
            return Path(pointer.read_text(encoding="utf-8"))
        time.sleep(0.1)
    raise ConfigError(f"rank 0 of this launch made no run folder within {_WAIT_S:.0f} s")


def make_run_folder(command: str, config: DviConfig, env: Mapping[str, str]) -> Path:
    """The folder of this launch, 0700: run.dir, else DVI_HOME/runs/<command>/<date>-<time>-<id>.

    Raises ConfigError for a run.dir that holds something already, unless run.resume is set.
    """
    rank = launch_rank(env)
    if config.run.dir is not None:
        return _given_folder(config, rank)
    if config.run.resume:
        raise ConfigError("run.resume=true needs run.dir, the folder to go on in")
    pointer = _pointer(command, env)
    if rank > 0:
        return _wait_for(pointer)
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    folder = _make(runs_dir() / command / name)
    if _is_many(env):
        replace_file(pointer, str(folder).encode(), durable=False)
    return folder
