"""The trainer's process ends when it is told to and when its server is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

WAIT = """
import threading
from trainers.process import end_with_parent, parent_pid, stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
end_with_parent(parent_pid(), stop)
print("up", flush=True)
while not stop.wait(0.0002):
    pass
"""
END_S = 10.0


def start(**environment: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAIT],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_inside_a_wait_ends_the_loop(number: signal.Signals) -> None:
    # A handler that set the Event itself would hang in about one of these in a few.
    for delay_ms in range(0, 40, 5):
        process = start()
        time.sleep(delay_ms / 1000)
        process.send_signal(number)
        assert process.wait(END_S) == 0


def test_a_server_that_died_during_the_start_is_noticed() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert start(DVI_PARENT_PID=str(gone.pid)).wait(END_S) == 0
