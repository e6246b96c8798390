"""SIGTERM and Ctrl-C: the first drains, the second stops at once, whenever they come."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from serving.signals import HANDLED, StopRequested, StopSignals


def send(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", HANDLED)
def test_a_first_signal_ends_the_wait_and_the_second_stops_at_once(number: int) -> None:
    stops: list[int] = []
    with StopSignals(lambda: stops.append(1)) as signals:
        signals.started()
        threading.Timer(0.05, send, [number]).start()
        signals.wait()
        assert stops == []
        send(number)
    assert stops == [1]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_signal_before_the_wait_is_not_lost() -> None:
    with StopSignals(lambda: None) as signals:
        signals.started()
        send()
        signals.wait()


def test_a_signal_during_the_start_ends_the_start() -> None:
    with StopSignals(lambda: None), pytest.raises(StopRequested):
        send()


def send_after(pause_s: float) -> None:
    time.sleep(pause_s)
    send()


def test_signals_while_the_wait_begins_never_hang_it() -> None:
    for pause_us in range(300):
        with StopSignals(lambda: None) as signals:
            signals.started()
            sender = threading.Thread(target=send_after, args=(pause_us * 1e-6,))
            sender.start()
            signals.wait()
            sender.join()


def test_a_signal_that_cannot_interrupt_the_wait_ends_it() -> None:
    """The same as one that comes between the interpreter's look and the blocking call."""
    sender = threading.Timer(0.05, send)
    with StopSignals(lambda: None) as signals:
        signals.started()
        sender.start()  # first: it inherits the mask
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            signals.wait()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sender.join()
