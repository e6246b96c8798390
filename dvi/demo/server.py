"""Starts and stops `dvi serve` as a process of its own, on throw-away state.

Owns the process; does not know what is sent to it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import httpx

from dvi.config import DviConfig
from dvi.config.child import module_command
from dvi.config.schema import leaves
from dvi.config.validate import to_mapping
from dvi.launch.request import quoted

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 40.0
_SECRETS = ("DVI_API_KEY", "DVI_ADMIN_KEY", "DVI_REPLAY_URL")  # never a user's own store or keys
_NOT_FORWARDED = ("demo.", "bench.", "run.", "serving.", "replay.url", "registry.path", "state_dir")


class ServerFailed(RuntimeError):
    """The server did not come up or went away; one line."""


def _override_value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return quoted(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def forwarded_overrides(config: DviConfig) -> list[str]:
    """Everything a user changed that concerns the server, as overrides of `dvi serve`."""
    data = to_mapping(config)
    overrides = []
    for leaf in leaves():
        value = data
        for part in leaf.key.split("."):
            value = value[part]
        if value != leaf.default and not leaf.key.startswith(_NOT_FORWARDED):
            overrides.append(f"{leaf.key}={_override_value(value)}")
    return overrides


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without keys and without the user's replay store."""
    return {name: value for name, value in env.items() if name not in _SECRETS}


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Inside, SIGTERM is KeyboardInterrupt: a server of ours must not outlive this process."""

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Server:
    """`dvi serve` as a context manager; ready on entry, stopped on exit."""

    def __init__(self, overrides: list[str], folder: Path) -> None:
        self._port = free_port()
        self._folder = folder
        own = [
            f"serving.port={self._port}",
            f"state_dir={quoted(str(folder / 'state'))}",
            f"run.dir={quoted(str(folder / 'serve'))}",
            "replay.log_content=true",
            "tracking.kind=none",
        ]
        self._command = module_command("dvi.demo.child", "serve", *overrides, *own)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def log_path(self) -> Path:
        """Everything the server printed."""
        return self._folder / "server.log"

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=child_environment(os.environ),
                # Ctrl-C must reach this process alone, which then stops the server in order.
                start_new_session=True,
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self._stop()

    def _last_line(self) -> str:
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        # One client: each new one reads all certificates, which takes CPU time from the start.
        with httpx.Client(base_url=self.url, timeout=2.0) as client:
            while time.monotonic() < deadline:
                if self._process.poll() is not None:
                    raise ServerFailed(f"dvi serve ended: {self._last_line()}")
                try:
                    if client.get("/ready").status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass  # not listening yet
                time.sleep(0.2)
        raise ServerFailed(f"dvi serve was not ready within {READY_TIMEOUT_S:.0f} s")

    def _stop(self) -> None:
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
