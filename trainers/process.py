"""What makes a background process a good neighbour: its priority, one a folder, no orphan.

Owns the system calls; does not know training.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dvi.config.child import signal_at_parents_death

PARENT_VARIABLE = "DVI_PARENT_PID"  # set by the server for its trainer
PARENT_LOOK_INTERVAL_S = 1.0
LOCK_LOOK_INTERVAL_S = 0.2
LOW_NICENESS = 10
NICEST = 19
IDLE_CLASS = "SCHED_IDLE"  # only time that nobody else wants
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
OOM_SCORE_ADJ = 500  # of -1000 to 1000; a share of 1000 of the memory


def take_priority(priority: str) -> str:
    """Run with ``trainer.priority``; returns how.

    What each costs a server whose cores are all busy is in docs/learning.md.
    """
    if priority == "normal":
        return "normal"
    if priority == "low":
        return f"nice {os.nice(LOW_NICENESS)}"
    if sys.platform == "linux":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except OSError:  # not allowed in this container: the next best
            pass
        else:
            return IDLE_CLASS
    return f"nice {os.nice(NICEST)}"


def offer_memory() -> None:
    """Be the process that Linux ends where memory runs out, rather than the server."""
    with suppress(OSError):  # no Linux, or not allowed
        Path("/proc/self/oom_score_adj").write_text(f"{OOM_SCORE_ADJ}", encoding="ascii")


def parent_pid() -> int:
    """The process that we are to end with.

    PARENT_VARIABLE where the parent set it: without it, a parent that dies while Python starts is
    taken for whoever adopted us.
    """
    named = os.environ.get(PARENT_VARIABLE, "")
    return int(named) if named else os.getppid()


@contextmanager
def ending_with_parent(parent: int, stop: threading.Event) -> Iterator[None]:
    """Have ``stop`` set when process ``parent`` is gone, whatever killed it.

    Linux sends SIGTERM at once; a look at the parent's id, now and every second, covers other
    systems and a parent that died before this call.
    """
    signal_at_parents_death(signal.SIGTERM)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(PARENT_LOOK_INTERVAL_S) and not stop.is_set():
            if os.getppid() != parent:
                stop.set()

    if os.getppid() != parent:
        stop.set()
    threading.Thread(target=look, name="parent-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
        signal_at_parents_death(0)


@contextmanager
def stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and Ctrl-C set ``stop``; the loop ends at its next turn. Main thread only.

    The handler itself does nothing: one that sets an Event hangs when the signal lands inside
    ``Event.wait`` of its own thread. The signal's byte in a pipe wakes a thread that sets it.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wake() -> None:
        while os.read(reader, 1):  # nothing: the other end was closed
            stop.set()
        os.close(reader)

    threading.Thread(target=wake, name="stop-signal", daemon=True).start()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        signal.signal(number, lambda _number, _frame: None)
    woken_before = signal.set_wakeup_fd(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)


@contextmanager
def sole_trainer(path: Path, stop: threading.Event, say: Callable[[str], None]) -> Iterator[bool]:
    """Hold the lock file inside; waits for another holder. False when told to stop before.

    The system frees the lock however a process ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield _wait_for_lock(descriptor, stop, say)
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, stop: threading.Event, say: Callable[[str], None]) -> bool:
    is_said = False
    while not stop.is_set():
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_said:
                say("another trainer holds this state folder: waiting for it to end")
                is_said = True
            stop.wait(LOCK_LOOK_INTERVAL_S)
        else:
            return True
    return False
