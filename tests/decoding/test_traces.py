"""A trace says what the target said at every committed position, and only that (invariant 5)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from dvi.decoding import decode_batch
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.types import FinishReason, Source, Trace
from tests.decoding.engines import (
    LIMITS,
    ScriptedDrafter,
    make_request,
    make_rig,
    real_drafter,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target


def target_logits(target: TargetModel, trace: Trace) -> torch.Tensor:
    """Raw logits [T, V] that chose the output, by one forward over the whole text."""
    ids = (*trace.prompt_ids, *trace.output_ids)[:-1]
    cache = target.new_cache(target.spec.num_layers, 1, len(ids))
    plan = target.plan([Segment(0, 0, ids)])
    hidden = target.deep(target.shallow(plan, cache), plan, cache)
    return target.logits(hidden[len(trace.prompt_ids) - 1 :])


def check_rounds(trace: Trace) -> None:
    """Accepted proposals are the output, the first reject is not; nothing after it is kept."""
    position = 0
    for round_ in trace.rounds:
        accepted = round_.num_accepted
        assert round_.proposed_ids[:accepted] == trace.output_ids[position : position + accepted]
        assert len(round_.proposed_ids) - accepted in (0, 1)
        if len(round_.proposed_ids) > accepted:
            assert round_.proposed_ids[accepted] != trace.output_ids[position + accepted]
        neural = round_.source is Source.NEURAL
        assert len(round_.draft_logprobs) == (len(round_.proposed_ids) if neural else 0)
        assert (round_.source is Source.TARGET) == (not round_.proposed_ids)
        position += accepted + 1
    assert position == len(trace.output_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_traces_hold_the_raw_target_logits_of_every_committed_position(temperature):
    target = build_target("tiny-mix", seed=12, vocab=70, num_token_ids=64)
    rig = make_rig(target, "block", draft_len=4)
    requests = [
        make_request(
            f"r{n}",
            random_prompt(n, 3 + 5 * n, 64),
            temperature=temperature,
            top_k=5,
            seed=n,
            max_tokens=12 + n,
            stop_token_ids=(n,),
        )
        for n in range(7)
    ]
    results = {result.request_id: result for result in decode_batch(rig.engine, requests)}
    assert len(rig.traces) == 7
    for trace in rig.traces:
        result = results[trace.request_id]
        assert trace.output_ids == result.token_ids
        assert trace.finish_reason is result.finish_reason
        assert trace.system_fingerprint == "rig"
        logits = target_logits(target, trace)
        # Stored in float32; both passes agree to 1e-12 in float64, so only rounding is left.
        tolerance = {"rtol": 1e-6, "atol": 1e-6}
        wanted = logits.topk(LIMITS.top_ids)
        assert np.array_equal(trace.top_ids, wanted.indices.int().numpy())
        np.testing.assert_allclose(trace.top_logits, wanted.values.numpy(), **tolerance)
        np.testing.assert_allclose(trace.logsumexp, logits.logsumexp(-1).numpy(), **tolerance)
        assert trace.top_ids.dtype == np.int32
        assert trace.top_logits.dtype == trace.logsumexp.dtype == np.float32
        check_rounds(trace)
        assert len(trace.rounds) == result.counts.rounds
        judged = sum(len(round_.proposed_ids) for round_ in trace.rounds)
        assert judged == result.counts.judged


def test_memory_rounds_carry_no_draft_log_probabilities_and_neural_rounds_the_live_version():
    target = build_target("tiny-mix", seed=12)
    drafter = ScriptedDrafter(real_drafter(target, "block", LIMITS), lambda _: (3, 4))
    rig = make_rig(target, drafter)
    decode_batch(rig.engine, [make_request("m", (1, 2))])
    assert {round_.source for round_ in rig.traces[0].rounds} <= {Source.MEMORY, Source.TARGET}
    check_rounds(rig.traces[0])

    rig = make_rig(target, "block")
    versions = []
    rig.engine.submit(make_request("n", (1, 2), max_tokens=40), lambda _: None)
    rig.stage("block", 1)
    while rig.engine.step().worked:
        versions.append(rig.drafter.adapter_version)
        rig.stage("block", len(versions) + 1)
    seen = [round_.adapter_version for round_ in rig.traces[0].rounds if round_.proposed_ids]
    assert seen == sorted(set(seen))
    assert len(seen) > 5


def test_only_answered_requests_that_may_be_logged_leave_a_trace():
    target = build_target("tiny-mix", seed=12)
    rig = make_rig(target, "head")
    silent = dataclasses.replace(make_request("silent", (1, 2)), log=False)
    reasons = {}
    for request in (make_request("gone", (1, 2)), silent, make_request("kept", (1, 2))):
        rig.engine.submit(request, lambda d: reasons.update({d.request_id: d.finish_reason}))
    rig.engine.step()
    rig.engine.step()
    rig.engine.cancel("gone")
    while rig.engine.step().worked:
        pass
    assert reasons == {
        "silent": FinishReason.LENGTH,
        "kept": FinishReason.LENGTH,
        "gone": FinishReason.CANCELLED,
    }
    assert [trace.request_id for trace in rig.traces] == ["kept"]
    # A later request on the cancelled one's row, the lowest, starts a trace of its own.
    decode_batch(rig.engine, [make_request("next", (5, 6), max_tokens=9)])
    assert len(rig.traces[1].top_ids) == len(rig.traces[1].output_ids) == 9


def test_logged_answers_equal_unlogged_ones():
    target = build_target("tiny-mix", seed=12)
    request = make_request("r", (1, 2), temperature=1.0, seed=5)
    answers = [
        decode_batch(make_rig(target, "head").engine, [one])[0].token_ids
        for one in (request, dataclasses.replace(request, log=False))
    ]
    assert answers[0] == answers[1]
