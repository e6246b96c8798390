"""What a thread beside decoding may take."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from dvi.modeling.threads import UNHURRIED_SHARE, Unhurried


def _shares(in_a_hurry: bool) -> float:
    """CPU time over elapsed time of a few matrix products."""
    matrix = torch.ones(1200, 1200)
    start_s, worked_s = time.perf_counter(), -time.thread_time()
    for _ in range(3):
        if in_a_hurry:
            matrix @ matrix
        else:
            with Unhurried():
                matrix @ matrix
    return (worked_s + time.thread_time()) / (time.perf_counter() - start_s)


def test_tensor_operations_leave_most_of_a_core_to_others() -> None:
    assert _shares(in_a_hurry=False) < 2 * UNHURRIED_SHARE


def test_it_sleeps_for_what_was_done_since_it_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = iter([0.0, 0.01, 0.01, 0.0105, 0.012, 0.012])  # when made, and after each operation
    slept: list[float] = []
    monkeypatch.setattr(time, "thread_time", lambda: next(worked))
    monkeypatch.setattr(time, "sleep", slept.append)
    with Unhurried():
        for _ in range(3):
            torch.ones(1)
    assert slept == pytest.approx([0.09, 0.018])  # half a millisecond was not worth it


def test_only_the_thread_that_asked_is_unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[str] = []
    monkeypatch.setattr(time, "sleep", lambda _: slept.append(threading.current_thread().name))
    with Unhurried():
        other = threading.Thread(target=_shares, args=(True,), name="other")
        other.start()
        other.join()
        assert slept == []
        _shares(in_a_hurry=True)
    assert set(slept) == {threading.current_thread().name}
    slept.clear()
    _shares(in_a_hurry=True)
    assert slept == []
