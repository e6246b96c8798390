"""The trainer as a child process: started, watched, restarted with back-off, stopped with us.

Owns the process; knows nothing of training. Whatever the child does, serving goes on.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import dvi
from dvi.config.child import keep_few_kernels, module_command
from serving.signs import SignsOfLife

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
HEALTHY_S = 60.0  # a child that lived so long failed for a new reason: the back-off starts anew
STOP_TIMEOUT_S = 10.0  # for its last checkpoint
LOOK_INTERVAL_S = 0.2
SECRETS = ("DVI_API_KEY", "DVI_ADMIN_KEY")  # the store's DVI_REPLAY_URL the trainer needs


def trainer_command(config_path: Path) -> list[str]:
    """The command line of the trainer's entry point."""
    return module_command("trainers.service", str(config_path))


def trainer_environment(num_threads: int) -> dict[str, str]:
    """Ours without keys; the child finds the same packages from any directory."""
    environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
    home = str(Path(dvi.__file__).resolve().parent.parent)
    paths = [home, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    environment["OMP_NUM_THREADS"] = str(num_threads)
    keep_few_kernels(environment)
    environment["DVI_PARENT_PID"] = str(os.getpid())  # the trainer ends with this process
    return environment


class Supervisor:
    """Keeps one child process alive in a thread of its own, until ``close``.

    Its thread starts every child and outlives it: on Linux a child may ask to be told when the
    thread that started it ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        signs: SignsOfLife | None = None,
        first_pause_s: float = FIRST_PAUSE_S,
    ) -> None:
        self._command = list(command)
        self._environment = environment
        self._signs = signs
        self._first_pause_s = first_pause_s
        self._stop = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._num_starts = 0
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def num_starts(self) -> int:
        """Children started so far."""
        return self._num_starts

    def pid(self) -> int | None:
        """Process id of the child that runs now."""
        child = self._child
        return child.pid if child is not None and child.poll() is None else None

    def is_up(self) -> bool:
        """Whether a child runs now."""
        return self.pid() is not None

    def ask_to_stop(self) -> None:
        """Tell the child to stop and start no other; ``close`` waits for it."""
        self._stop.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.terminate()

    def kill(self) -> None:
        """End the child now: its last checkpoint is whole by design."""
        self._stop.set()
        child = self._child
        if child is not None and child.poll() is None:
            child.kill()

    def close(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask the child to stop, kill it after ``timeout_s``, end the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_INTERVAL_S * 5)  # it may be about to start a child
        self.ask_to_stop()
        if self._child is None:
            return
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            logger.warning("trainer did not stop within %.0f s: killed", timeout_s)
            self.kill()
            self._child.wait()

    def _run(self) -> None:
        pause_s = self._first_pause_s
        while not self._stop.is_set():
            started_s = time.monotonic()
            status = self._live()
            if status is None:
                return
            if time.monotonic() - started_s >= HEALTHY_S:
                pause_s = self._first_pause_s
            logger.warning("trainer ended (%s); next start in %.1f s", status, pause_s)
            self._stop.wait(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    def _live(self) -> str | None:
        """Start a child and wait for its end; how it ended, or None when we are to stop."""
        try:
            self._child = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # our stdout carries the ready line only
                # Ctrl-C is for the server, which stops the trainer in turn. Not a session of its
                # own: Linux divides cores among sessions first (autogroup), and the child's
                # priority would count within its session only.
                process_group=0,
            )
        except OSError as error:
            return f"not started: {error}"
        self._num_starts += 1
        if self._signs is not None:
            self._signs.start(self._child.pid)
        while not self._stop.wait(LOOK_INTERVAL_S):
            status = self._child.poll()
            if status is not None:
                return f"exit status {status}"
            if self._signs is not None and self._signs.are_missing():
                logger.warning("trainer hangs: killed")
                self._child.kill()
                self._signs.start(self._child.pid)  # its end may take a while
        return None
