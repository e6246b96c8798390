"""Faults cost what they touch and nothing else; the engine goes on (ARCHITECTURE fact 5)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from dvi.decoding import (
    EngineLimits,
    Outcome,
    decode_batch,
)
from dvi.drafting import DraftRequest
from dvi.types import Delta, FinishReason
from tests.decoding.engines import (
    LIMITS,
    Received,
    Rig,
    ScriptedDrafter,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=20)
SMALL = EngineLimits(num_rows=2, max_queue=3, max_context_len=160, max_draft_len=8, top_ids=4)


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


def test_a_request_whose_decoder_cannot_be_made_fails_alone():
    rig = make_rig(TARGET, "none", limits=SMALL)
    got = Received()
    make = rig.engine.scheduler._make_session

    def fail_once(request, row):
        if request.request_id == "bad":
            raise RuntimeError("no decoder")
        return make(request, row)

    rig.engine.scheduler._make_session = fail_once
    for name in ("bad", "good"):
        rig.engine.submit(make_request(name, (1, 2)), got)
    while rig.engine.step().worked:
        pass
    assert (got.reason("bad"), got.reason("good")) == (FinishReason.FAILED, FinishReason.LENGTH)
    assert rig.engine.stats().requests[Outcome.FAILED] == 1


def fail_at_choosing(rig: Rig) -> None:
    """One step whose batch is never made."""
    take = rig.engine.scheduler._take_prefixes

    def fail(reading: object) -> list[object]:
        raise RuntimeError("no batch")

    rig.engine.scheduler._take_prefixes = fail
    rig.engine.advance()
    rig.engine.scheduler._take_prefixes = take


def test_a_step_without_a_batch_fails_everyone_on_a_row_and_nobody_else():
    rig = make_rig(TARGET, "block", limits=SMALL)
    got = Received()
    rig.engine.submit(make_request("old", (1, 2), max_tokens=90), got)
    for _ in range(3):
        rig.engine.advance()
    for name in ("new", "waits"):  # two rows: the first joins in the step that fails
        rig.engine.submit(make_request(name, (3, 4), max_tokens=12), got)
    fail_at_choosing(rig)
    assert (got.reason("old"), got.reason("new")) == (FinishReason.FAILED, FinishReason.FAILED)
    while rig.engine.advance().worked:
        pass
    assert got.reason("waits") is FinishReason.LENGTH
    assert rig.engine.stats().requests[Outcome.FAILED] == 2


def test_a_failing_step_does_not_fail_whoever_was_in_the_step_before():
    rig = make_rig(TARGET, "none", limits=SMALL)
    got = Received()
    rig.engine.submit(make_request("ended", (1, 2), max_tokens=1), got)
    while rig.engine.advance().worked:
        pass
    rig.engine.submit(make_request("next", (1, 2), max_tokens=12), got)
    fail_at_choosing(rig)  # the batch before it was that of a request which has ended
    assert got.reason("next") is FinishReason.FAILED
    assert [one.finish_reason for one in got.deltas["ended"]] == [FinishReason.LENGTH]


def test_a_request_that_no_row_can_be_found_for_fails_alone():
    rig = make_rig(TARGET, "none", limits=SMALL)
    got = Received()
    place = rig.engine.scheduler._rows.place

    def fail_once(request, family):
        if request.request_id == "bad":
            raise RuntimeError("no place")
        return place(request, family)

    rig.engine.scheduler._rows.place = fail_once
    for name in ("bad", "good"):
        rig.engine.submit(make_request(name, (1, 2)), got)
    while rig.engine.step().worked:
        pass
    assert (got.reason("bad"), got.reason("good")) == (FinishReason.FAILED, FinishReason.LENGTH)


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
