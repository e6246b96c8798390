"""A server process that can be killed and started again on its port, with a record of when it was.

Owns the process, its port and the times it was down; knows neither traffic nor what is checked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, SIGTERM

import httpx

from dvi.config import DviConfig
from dvi.config.io import dump_config
from serving.http_server import bind
from tests.serving.processes import RUN
from trainers.status import read_status

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
# Gives up CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH (PR_CAPBSET_DROP is 24), so that a folder
# without the write bit is read-only for root too, and becomes the command.
RESPECT_MODES = (
    "import ctypes, os, sys\n"
    "for capability in (1, 2):\n"
    "    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)


@dataclass
class Plant:
    """The server of a soak. One thread changes it; others may read ``was_down``."""

    config: DviConfig
    folder: Path
    popen: subprocess.Popen[bytes] | None = None
    downs: list[tuple[float, float]] = field(default_factory=list)  # monotonic, until ready again

    def __post_init__(self) -> None:
        with bind("127.0.0.1", 0) as free:
            self.config.serving.port = free.getsockname()[1]
        self.folder.mkdir(parents=True, exist_ok=True)
        dump_config(self.config, self.folder / "config.json")

    @property
    def url(self) -> str:
        """Of every start."""
        return f"http://127.0.0.1:{self.config.serving.port}"

    @property
    def state(self) -> Path:
        """The state folder."""
        return Path(self.config.state_dir or "")

    @property
    def log(self) -> Path:
        """Standard error of every start."""
        return self.folder / "stderr.txt"

    @property
    def pid(self) -> int:
        """Of the server that runs now."""
        assert self.popen is not None
        return self.popen.pid

    def trainer_pid(self) -> int | None:
        """By the trainer's own word."""
        pid = read_status(self.state / "trainer" / "status.json").get("pid")
        return int(pid) if pid else None

    def start(self) -> None:
        """Start and wait until it is ready."""
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", RESPECT_MODES, *self._command()],
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            assert self.popen.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, "never ready"
            time.sleep(0.2)

    def _command(self) -> list[str]:
        return [sys.executable, "-c", RUN, str(self.folder / "config.json"), str(self.folder)]

    def is_ready(self) -> bool:
        """What /ready says."""
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == httpx.codes.OK
        return False

    def kill_and_start(self) -> None:
        """Kill -9, then a new server on the same state and port."""
        killed_s = time.monotonic()
        self.downs.append((killed_s, float("inf")))
        os.kill(self.pid, SIGKILL)
        assert self.popen is not None
        self.popen.wait(STOP_TIMEOUT_S)
        self.start()
        self.downs[-1] = (killed_s, time.monotonic())

    def was_down(self, start_s: float, end_s: float) -> bool:
        """Whether the server was killed or not ready at some time in between."""
        return any(start_s <= until and since <= end_s for since, until in self.downs)

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        assert self.popen is not None
        self.popen.send_signal(SIGTERM)
        return self.popen.wait(STOP_TIMEOUT_S)

    def end(self) -> None:
        """Whatever still runs."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.kill()
            self.popen.wait(STOP_TIMEOUT_S)
