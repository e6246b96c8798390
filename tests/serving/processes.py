"""`dvi serve` as a process of its own, started from a config file.

Owns start, ready line and signals; knows no property.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from dvi.config import DviConfig
from dvi.config.io import dump_config

RUN = (
    "import sys\n"
    "from pathlib import Path\n"
    "from dvi.config.io import load_config\n"
    "from serving.main import serve\n"
    "sys.exit(serve(load_config(Path(sys.argv[1])), Path(sys.argv[2])))\n"
)
START_TIMEOUT_S = 120.0


@dataclass
class Process:
    """A server process after its ready line."""

    popen: subprocess.Popen[str]
    ready: str
    http: httpx.Client
    state: Path

    def metric(self, name: str) -> float:
        """The sample whose ``name{label value}`` this is."""
        text = self.http.get("/metrics").text
        found = {
            sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return found[name]

    def trainer_pid(self) -> int | None:
        """Process id by the trainer's own status file."""
        try:
            return int(json.loads((self.state / "trainer" / "status.json").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the exit status."""
        self.popen.send_signal(number)
        return self.popen.wait(60)


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _first_line(popen: subprocess.Popen[str]) -> str:
    assert popen.stdout is not None
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: lines.put(popen.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    return lines.get(timeout=START_TIMEOUT_S)


@contextmanager
def server_process(config: DviConfig, folder: Path) -> Iterator[Process]:
    """Start, wait until ready; at the end kill what still runs."""
    folder.mkdir(exist_ok=True)
    dump_config(config, folder / "config.json")
    popen = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder / "config.json"), str(folder)],
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr.txt").open("a"),
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        ready = _first_line(popen)
        assert ready.startswith("dvi ready: "), (folder / "stderr.txt").read_text()
        with httpx.Client(base_url=ready.split()[2], timeout=60) as http:
            yield Process(popen, ready, http, Path(config.state_dir or ""))
    finally:
        if popen.poll() is None:
            popen.kill()
            popen.wait()
