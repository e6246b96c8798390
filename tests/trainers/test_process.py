"""The trainer's process ends when it is told to and when its server is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainers.process import OOM_SCORE_ADJ, STOP_SIGNALS, ending_with_parent, stopping_on_signals

WAIT = """
import threading
from trainers.process import ending_with_parent, parent_pid, stopping_on_signals
stop = threading.Event()
with stopping_on_signals(stop), ending_with_parent(parent_pid(), stop):
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


def test_what_was_handled_before_is_handled_so_again_afterwards() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    stop = threading.Event()
    with stopping_on_signals(stop), ending_with_parent(os.getppid(), stop):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(END_S)
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_second_signal_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    with stopping_on_signals(stop):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(END_S)
            time.sleep(0.05)
    assert capfd.readouterr().err == ""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_trainer_is_what_a_machine_without_memory_ends_first() -> None:
    code = "from trainers.process import offer_memory; offer_memory(); print(open(PATH).read())"
    code = code.replace("PATH", "'/proc/self/oom_score_adj'")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(said.stdout) == OOM_SCORE_ADJ > own


def test_a_server_that_died_during_the_start_is_noticed() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert start(DVI_PARENT_PID=str(gone.pid)).wait(END_S) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")
@pytest.mark.parametrize(
    ("priority", "policy", "niceness"),
    [("idle", "SCHED_IDLE", 0), ("low", "SCHED_OTHER", 10), ("normal", "SCHED_OTHER", 0)],
)
def test_a_trainer_has_the_priority_that_it_was_given(
    priority: str, policy: str, niceness: int
) -> None:
    code = (
        "import os; from trainers.process import take_priority; before = os.nice(0); "
        f"take_priority({priority!r}); "
        f"print(os.sched_getscheduler(0) == os.{policy}, os.nice(0) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", str(niceness)]
