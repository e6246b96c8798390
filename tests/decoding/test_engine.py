"""Requests join, wait, leave and are served by one thread."""

from __future__ import annotations

import threading
import time

import pytest

from dvi.decoding import (
    EngineLimits,
    Outcome,
    QueueFull,
    join_deltas,
)
from dvi.types import Delta, FinishReason
from tests.decoding.engines import (
    LIMITS,
    Received,
    make_request,
    make_rig,
    reference_tokens,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=20)
SMALL = EngineLimits(num_rows=2, max_queue=3, max_context_len=160, max_draft_len=8, top_ids=4)


def test_more_than_the_queue_holds_are_refused_whole_and_free_rows_count_as_room():
    rig = make_rig(TARGET, "none", limits=SMALL)
    got = Received()
    rig.engine.submit_all([make_request(f"a{n}", (1,)) for n in range(4)], got)
    with pytest.raises(QueueFull, match="3 requests are waiting already"):
        rig.engine.submit_all([make_request(f"b{n}", (1,)) for n in range(2)], got)
    rig.engine.submit(make_request("c", (1,)), got)
    rig.engine.step()  # two rows are taken, three wait
    assert rig.engine.stats().queue_depth == 3
    with pytest.raises(QueueFull):
        rig.engine.submit(make_request("d", (1,)), got)
    while rig.engine.step().worked:
        pass
    assert sorted(got.deltas) == ["a0", "a1", "a2", "a3", "c"]
    requests = rig.engine.stats().requests
    assert (requests[Outcome.LENGTH], requests[Outcome.REJECTED]) == (5, 3)


def test_requests_wait_in_order_of_arrival():
    rig = make_rig(TARGET, "none", limits=SMALL)
    first: list[str] = []
    for n in range(5):
        rig.engine.submit(
            make_request(f"r{n}", (1,), max_tokens=3 + n),
            lambda d: first.append(d.request_id) if d.request_id not in first else None,
        )
    while rig.engine.step().worked:
        pass
    assert first == ["r0", "r1", "r2", "r3", "r4"]


def test_a_cancelled_request_frees_its_row_in_the_next_step_and_its_tokens_are_counted_apart():
    rig = make_rig(TARGET, "block", limits=SMALL)
    got = Received()
    for index, name in enumerate(("run", "gone", "wait")):
        rig.engine.submit(make_request(name, (index, 2), max_tokens=60), got)
    rig.engine.submit(make_request("withdrawn", (1, 2)), got)
    for _ in range(3):
        rig.engine.step()
    rig.engine.cancel("gone")
    rig.engine.cancel("withdrawn")
    rig.engine.cancel("unknown")
    report = rig.engine.step()
    assert got.reason("gone") is FinishReason.CANCELLED
    assert got.reason("withdrawn") is FinishReason.CANCELLED
    assert report.num_prefill_tokens == 1  # the waiting request has the row already
    while rig.engine.step().worked:
        pass
    stats = rig.engine.stats()
    lost = sum(len(delta.token_ids) for delta in got.deltas["gone"])
    kept = sum(len(d.token_ids) for name in ("run", "wait") for d in got.deltas[name])
    assert stats.cancelled_tokens == lost > 0
    assert stats.generated_tokens == lost + kept
    assert stats.requests[Outcome.CANCELLED] == 2
    assert stats.running == 0
    assert stats.kv_used_ratio == 0


def test_all_choices_of_a_request_are_cancelled_together():
    rig = make_rig(TARGET, "none", limits=SMALL)
    got = Received()
    rig.engine.submit_all(
        [make_request("many", (1, 2), choice_index=index) for index in range(4)], got
    )
    rig.engine.step()
    rig.engine.cancel("many")
    rig.engine.step()
    ended = [d.choice_index for d in got.deltas["many"] if d.finish_reason]
    assert sorted(ended) == [0, 1, 2, 3]


def test_prompts_are_read_in_chunks_that_leave_running_requests_a_round_every_step():
    limits = EngineLimits(
        num_rows=3,
        max_queue=9,
        max_context_len=160,
        max_draft_len=8,
        prefill_chunk_len=32,
        shared_prefill_chunk_len=10,
    )
    rig = make_rig(TARGET, "none", limits=limits)
    got = Received()
    rig.engine.submit(make_request("long", [3] * 70), got)
    report = rig.engine.step()
    assert (report.num_prefill_tokens, report.num_rounds) == (32, 0)
    rig.engine.submit(make_request("short", (1, 2), max_tokens=30), got)
    report = rig.engine.step()
    assert (report.num_prefill_tokens, report.num_rounds) == (32, 0)  # long is served first
    report = rig.engine.step()
    assert (report.num_prefill_tokens, report.num_rounds) == (6, 0)  # 5 of long, 1 of short
    rig.engine.submit(make_request("late", [4] * 25, max_tokens=2), got)
    for prefill in (10, 10, 4, 0):
        report = rig.engine.step()
        assert report.num_prefill_tokens == prefill
        assert report.num_rounds == (3 if prefill == 0 else 2)


def test_a_one_token_prompt_needs_no_prefill():
    rig = make_rig(TARGET, "block")
    rig.engine.submit(make_request("one", (5,)), Received())
    report = rig.engine.step()
    assert (report.num_prefill_tokens, report.num_rounds) == (0, 1)


def test_a_decode_thread_serves_many_threads_and_ends_everyone_when_it_stops():
    rig = make_rig(TARGET, "block", limits=LIMITS)
    stop = threading.Event()
    thread = threading.Thread(target=rig.engine.run, args=(stop,))
    thread.start()
    requests = [
        make_request(f"r{n}", random_prompt(n, 1 + n, 64), max_tokens=8, temperature=1.0, seed=n)
        for n in range(12)
    ]
    answers: dict[str, list[Delta]] = {}

    def ask(request) -> None:
        done = threading.Event()
        deltas: list[Delta] = []

        def take(delta: Delta) -> None:
            deltas.append(delta)
            if delta.finish_reason is not None:
                done.set()

        rig.engine.submit(request, take)
        assert done.wait(60)
        answers[request.request_id] = deltas

    askers = [threading.Thread(target=ask, args=(request,)) for request in requests]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(60)
    for request in requests:
        result = join_deltas(answers[request.request_id])
        assert result.token_ids == reference_tokens(TARGET, request)
    beat_s = rig.engine.stats().last_step_s
    deadline_s = time.monotonic() + 30
    while rig.engine.stats().last_step_s == beat_s:  # an idle engine shows that it lives
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    got = Received()
    for name in ("x", "y"):
        rig.engine.submit(make_request(name, (1, 2), max_tokens=100), got)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    for name in ("x", "y"):
        assert got.reason(name) in (FinishReason.FAILED, FinishReason.LENGTH)
    with pytest.raises(QueueFull, match="the server is stopping"):
        rig.engine.submit(make_request("late", (1, 2)), got)
