"""Requests join, wait, leave, fail and are counted; the engine goes on (invariants 5 and 9)."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest
import torch

from dvi.decoding import (
    EngineLimits,
    Outcome,
    Phase,
    QueueFull,
    decode_batch,
    join_deltas,
)
from dvi.drafting import DraftRequest
from dvi.types import Delta, FinishReason, Source
from tests.decoding.engines import (
    LIMITS,
    ScriptedDrafter,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=20)
SMALL = EngineLimits(num_rows=2, max_queue=3, max_context_len=160, max_draft_len=8, top_ids=4)


class Received:
    """Deltas by request."""

    def __init__(self) -> None:
        self.deltas: dict[str, list[Delta]] = defaultdict(list)

    def __call__(self, delta: Delta) -> None:
        self.deltas[delta.request_id].append(delta)

    def reason(self, name: str) -> FinishReason | None:
        return self.deltas[name][-1].finish_reason if self.deltas[name] else None


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
    for name in ("run", "gone", "wait"):
        rig.engine.submit(make_request(name, (1, 2), max_tokens=60), got)
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


def test_counters_are_the_sums_of_what_was_delivered():
    rig = make_rig(TARGET, "block", draft_len=5)
    requests = [
        make_request(f"r{n}", random_prompt(n, n + 1, 64), max_tokens=5 + 3 * n, draft_len=n % 6)
        for n in range(9)
    ]
    results = decode_batch(rig.engine, requests)
    stats = rig.engine.stats()
    counts = stats.counts
    for name in ("rounds", "proposed", "judged", "accepted"):
        total = sum(getattr(result.counts, name) for result in results)
        assert getattr(counts, name) == total
    assert stats.generated_tokens == counts.rounds + counts.accepted
    assert stats.generated_tokens == sum(len(result.token_ids) for result in results)
    assert stats.prompt_tokens == sum(len(request.prompt_ids) for request in requests)
    assert sum(stats.proposed_per_position) == counts.proposed
    assert sum(stats.accepted_per_position) == counts.accepted
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    assert len(stats.proposed_per_position) == LIMITS.max_draft_len
    mean_accepted_length = 1 + sum(stats.accepted_per_position) / counts.rounds
    assert mean_accepted_length == counts.mean_accepted_length()
    assert counts.by_source[Source.NEURAL].judged == counts.judged
    assert set(stats.phase_s) == set(Phase)
    assert all(seconds > 0 for seconds in stats.phase_s.values())
    assert stats.draft_len <= 5
    assert stats.acceptance_fast > 0


def test_an_answer_is_counted_before_it_is_delivered():
    rig = make_rig(TARGET, "head")
    seen = []

    def look(delta: Delta) -> None:
        stats = rig.engine.stats()
        seen.append((delta.finish_reason, stats.generated_tokens, stats.requests[Outcome.LENGTH]))

    rig.engine.submit(make_request("r", (1, 2), max_tokens=7), look)
    while rig.engine.step().worked:
        pass
    assert seen[-1] == (FinishReason.LENGTH, 7, 1)


def broken_script(request: DraftRequest) -> Sequence[int]:
    raise RuntimeError("no draft today")


def test_a_failing_drafter_costs_speed_and_no_answer():
    inner = real_drafter(TARGET, "block", LIMITS)
    rig = make_rig(TARGET, ScriptedDrafter(inner, broken_script))
    requests = [make_request(f"r{n}", (1, n), max_tokens=9) for n in range(3)]
    for request, result in zip(requests, decode_batch(rig.engine, requests), strict=True):
        assert result.token_ids == reference_tokens(TARGET, request)
        assert result.counts.proposed == 0
    stats = rig.engine.stats()
    assert stats.drafter_faults == 1  # one batch; its requests draft no more
    assert stats.step_faults == 0


def test_a_drafter_that_cannot_observe_costs_no_answer_and_stops_drafting_for_that_request():
    inner = real_drafter(TARGET, "block", LIMITS)
    drafter = ScriptedDrafter(inner, lambda _: (1, 2))
    rig = make_rig(TARGET, drafter)

    def fail(hidden: torch.Tensor, plan: object) -> None:
        raise ValueError("blind")

    drafter.observe = fail
    request = make_request("r", (1, 2, 3), max_tokens=9)
    (result,) = decode_batch(rig.engine, [request])
    assert result.token_ids == reference_tokens(TARGET, request)
    assert result.counts.proposed == 0


def test_a_failing_step_fails_its_requests_and_the_engine_goes_on():
    rig = make_rig(TARGET, "block", limits=SMALL)
    got = Received()
    for name in ("a", "b", "waits"):
        rig.engine.submit(make_request(name, (1, 2), max_tokens=12), got)
    rig.engine.advance()
    rig.engine.advance()
    verify = rig.engine.verifier.verify

    def fail(batch: object, proposals: object) -> list[object]:
        raise RuntimeError("secret prompt text")

    rig.engine.verifier.verify = fail
    rig.engine.advance()
    rig.engine.verifier.verify = verify
    while rig.engine.advance().worked:
        pass
    for name in ("a", "b"):
        last = got.deltas[name][-1]
        assert last.finish_reason is FinishReason.FAILED
        assert last.error == "decoding failed: RuntimeError"
    assert got.reason("waits") is FinishReason.LENGTH
    stats = rig.engine.stats()
    assert (stats.step_faults, stats.requests[Outcome.FAILED]) == (1, 2)
    lost = sum(len(d.token_ids) for name in ("a", "b") for d in got.deltas[name])
    assert stats.cancelled_tokens == lost
    assert stats.generated_tokens - stats.cancelled_tokens == 12
    assert [trace.request_id for trace in rig.traces] == ["waits"]


def test_a_receiver_that_fails_hurts_nobody_else():
    rig = make_rig(TARGET, "none", limits=SMALL)
    got = Received()

    def broken(delta: Delta) -> None:
        raise RuntimeError("loop is closed")

    rig.engine.submit(make_request("bad", (1, 2)), broken)
    rig.engine.submit(make_request("good", (1, 2)), got)
    while rig.engine.step().worked:
        pass
    assert got.reason("good") is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_ids": ()}, "prompt has 0 tokens; allowed: 1 to 159"),
        ({"prompt_ids": (64,)}, "prompt has a token id outside 0 to 63"),
        ({"prompt_ids": (-1,)}, "prompt has a token id outside 0 to 63"),
        ({"prompt_ids": (1,), "max_tokens": 0}, "max_tokens is 0; allowed: 1 or more"),
        ({"prompt_ids": (1,), "stop": ("a", "")}, "stop has an empty string"),
    ],
)
def test_requests_that_cannot_run_are_refused_with_the_value_and_the_range(change, message):
    rig = make_rig(TARGET, "none")
    fields = dict(change)
    request = make_request("r", fields.pop("prompt_ids"), **fields)
    with pytest.raises(ValueError, match=message):
        rig.engine.submit(request, print)
    assert not rig.engine.step().worked


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


class Watch:
    """Everything an observer is told."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, ...]]] = defaultdict(list)

    def queue_wait(self, seconds: float) -> None:
        self.calls["queue_wait"].append((seconds,))

    def first_token(self, seconds: float) -> None:
        self.calls["first_token"].append((seconds,))

    def inter_token(self, seconds: float, num_tokens: int) -> None:
        self.calls["inter_token"].append((seconds, num_tokens))

    def request_done(self, seconds: float) -> None:
        self.calls["request_done"].append((seconds,))

    def request_acceptance(self, rate: float) -> None:
        self.calls["request_acceptance"].append((rate,))

    def swap_pause(self, seconds: float) -> None:
        self.calls["swap_pause"].append((seconds,))


def test_observers_hear_of_every_wait_delivery_and_end():
    watch = Watch()
    rig = make_rig(TARGET, "block", observer=watch)
    rig.stage("block", 1)
    results = decode_batch(
        rig.engine, [make_request(f"r{n}", (1, 2, n), max_tokens=10) for n in range(6)]
    )
    calls = watch.calls
    assert len(calls["queue_wait"]) == len(calls["first_token"]) == len(calls["request_done"]) == 6
    assert len(calls["swap_pause"]) == 1
    num_rounds = sum(result.counts.rounds for result in results)
    assert len(calls["inter_token"]) == num_rounds - 6
    later = sum(tokens for _, tokens in calls["inter_token"])
    assert 0 < later < 60
    rates = sorted(rate for (rate,) in calls["request_acceptance"])
    assert rates == sorted(result.counts.acceptance_rate() for result in results)
    for (queued,), (first,), (done,) in zip(
        calls["queue_wait"], calls["first_token"], calls["request_done"], strict=True
    ):
        assert 0 < queued < first <= done
