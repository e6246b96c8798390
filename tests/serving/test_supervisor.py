"""The trainer's process: restarted whenever it ends, stopped with the server, given no key."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.signs import LOOKS, SignsOfLife
from serving.supervisor import Supervisor, trainer_command, trainer_environment

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); time.sleep(60)",
]


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_killed_child_is_started_again() -> None:
    with Supervisor(SLEEPS, dict(os.environ), first_pause_s=0.01) as supervisor:
        assert wait_for(supervisor.is_up)
        first = supervisor.pid()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: supervisor.pid() not in (None, first))
        assert supervisor.num_starts == 2
        second = supervisor.pid()
    assert second is not None
    assert not supervisor.is_up()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)


def test_a_child_competes_with_us_by_its_priority_and_hears_no_ctrl_c() -> None:
    """Linux divides cores among sessions first; a terminal's signals go to a process group."""
    with Supervisor(SLEEPS, dict(os.environ)) as supervisor:
        assert wait_for(supervisor.is_up)
        pid = supervisor.pid()
        assert pid is not None
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) == pid != os.getpgid(0)


def test_restarts_back_off() -> None:
    fails = [sys.executable, "-c", "raise SystemExit(3)"]
    with Supervisor(fails, dict(os.environ), first_pause_s=0.4) as supervisor:
        # Starts at 0, 0.4, 1.2 and 2.8 s: the fourth cannot come within the second that is waited.
        assert wait_for(lambda: supervisor.num_starts >= 2)
        time.sleep(1.0)
        assert supervisor.num_starts <= 3


def test_a_command_that_cannot_start_harms_nobody(tmp_path: Path) -> None:
    missing = [str(tmp_path / "nothing")]
    with Supervisor(missing, {}, first_pause_s=0.01) as supervisor:
        time.sleep(0.1)
        assert not supervisor.is_up()


def test_a_child_that_does_not_stop_is_killed() -> None:
    supervisor = Supervisor(STUBBORN, dict(os.environ))
    with supervisor:
        assert wait_for(supervisor.is_up)
        time.sleep(0.3)  # let it ignore the signal
        supervisor.close(timeout_s=0.2)
        assert not supervisor.is_up()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_hangs_is_killed_and_another_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.supervisor.LOOK_INTERVAL_S", 0.01)
    said = ["nothing yet"]
    signs = SignsOfLife(lambda: said[0], max_silence_s=0.2)
    with Supervisor(SLEEPS, dict(os.environ), signs, first_pause_s=0.01) as supervisor:
        assert wait_for(supervisor.is_up)
        first = supervisor.pid()
        assert first is not None
        time.sleep(0.5)
        assert supervisor.pid() == first  # it may wait for something before its first word
        said[0] = "up, and then the same for ever"
        os.kill(first, signal.SIGSTOP)  # SIGTERM would wait with it
        assert wait_for(lambda: supervisor.pid() not in (None, first))
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


def signs_of(said: list[int], state: list[str], now_s: list[float]) -> SignsOfLife:
    return SignsOfLife(lambda: said[0], 300.0, lambda _pid: state[0], lambda: now_s[0])


@pytest.mark.parametrize("waiting", ["S", "T", "D", ""])
def test_silence_is_a_fault_only_where_no_core_is_waited_for(waiting: str) -> None:
    said, state, now_s = [0], [waiting], [0.0]
    signs = signs_of(said, state, now_s)
    signs.start(1)
    for now_s[0] in range(0, 100 * LOOKS, 100):  # before the first word
        assert not signs.are_missing()
    now_s[0] = 299.0
    said[0] = 1
    assert not signs.are_missing()
    now_s[0] = 599.0
    assert not signs.are_missing()
    state[0] = "R"  # starved, not stuck
    now_s[0] = 10_000.0
    for _ in range(2 * LOOKS):
        assert not signs.are_missing()
    state[0] = waiting
    assert [signs.are_missing() for _ in range(LOOKS)] == [False] * (LOOKS - 1) + [True]
    signs.start(2)
    assert not signs.are_missing()


def test_the_child_gets_no_keys_and_finds_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVI_API_KEY", "secret")
    monkeypatch.setenv("DVI_ADMIN_KEY", "secret")
    monkeypatch.setenv("DVI_REPLAY_URL", "sqlite:///x")
    environment = trainer_environment(num_threads=1)
    assert "secret" not in environment.values()
    assert environment["DVI_REPLAY_URL"] == "sqlite:///x"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["LRU_CACHE_CAPACITY"] == "128"
    first = Path(environment["PYTHONPATH"].split(os.pathsep)[0])
    assert (first / "trainers").is_dir()
    assert trainer_command(Path("/c.json"))[1:] == ["-P", "-m", "trainers.service", "/c.json"]
