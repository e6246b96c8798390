"""A request's own time limit: it ends with "timeout" wherever it is, and others do not feel it."""

from __future__ import annotations

from dataclasses import replace

from dvi.decoding import EngineLimits, Outcome, decode_batch
from dvi.types import FinishReason
from tests.decoding.engines import Received, make_request, make_rig
from tests.rigs import build_target


class HandClock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def timed_rig(num_rows: int = 2):
    limits = EngineLimits(
        num_rows=num_rows, max_queue=9, max_context_len=160, max_draft_len=8, top_ids=8
    )
    rig = make_rig(build_target("tiny-mix", seed=2), "head", limits=limits)
    clock = HandClock()
    return type(rig.engine)(replace(rig.engine.parts, clock=clock)), clock, rig


def test_a_running_request_ends_at_its_deadline_and_keeps_what_it_had():
    engine, clock, rig = timed_rig()
    received = Received()
    timed = replace(make_request("t", (1, 2), max_tokens=50), deadline_s=101.0)
    engine.submit(timed, received)
    engine.submit(make_request("o", (3, 4), max_tokens=20), received)
    for _ in range(3):
        engine.step()
    clock.now_s = 101.0
    while engine.step().worked:
        pass
    last = received.deltas["t"][-1]
    assert (last.finish_reason, last.error, last.token_ids) == (
        FinishReason.CANCELLED, "timeout", (),
    )  # fmt: skip
    assert last.counts is not None
    shown = sum(len(delta.token_ids) for delta in received.deltas["t"])
    assert 0 < shown < 50
    assert received.reason("o") is FinishReason.LENGTH
    stats = engine.stats()
    assert stats.requests[Outcome.CANCELLED] == 1
    assert stats.cancelled_tokens == shown
    assert [trace.request_id for trace in rig.traces] == ["o"]


def test_a_request_times_out_in_the_waiting_line_too():
    engine, clock, _ = timed_rig(num_rows=1)
    received = Received()
    engine.submit(make_request("o", (3, 4), max_tokens=20), received)
    engine.step()
    engine.submit(replace(make_request("t", (1, 2)), deadline_s=101.0), received)
    engine.step()
    assert received.reason("t") is None
    clock.now_s = 101.5
    engine.step()
    assert received.reason("t") is FinishReason.CANCELLED
    assert received.deltas["t"][-1].error == "timeout"
    while engine.step().worked:
        pass
    assert received.reason("o") is FinishReason.LENGTH


def test_a_deadline_that_is_not_met_changes_nothing():
    engine, _, _ = timed_rig()
    request = make_request("r", (1, 2), max_tokens=20)
    (free,) = decode_batch(engine, [request])
    (timed,) = decode_batch(engine, [replace(request, deadline_s=1e9)])
    assert timed.token_ids == free.token_ids
    assert timed.error is None
