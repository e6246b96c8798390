"""A prompt that starts from a shared prefix is answered as one that is computed whole."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dvi.decoding import decode_batch
from dvi.drafting.block import BlockDrafter
from dvi.modeling.plan import Segment
from dvi.types import DecodeRequest, Trace, Verification
from tests.decoding.engines import (
    LIMITS,
    Received,
    Rig,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

DTYPES = [(torch.float64, False), (torch.float32, True)]  # (dtype, deterministic)


def draw_request(rng: random.Random, name: str, texts: list[list[int]]) -> DecodeRequest:
    """A prompt that often begins like a text seen before, cut anywhere; two users, some private."""
    start = rng.choice(texts)[: rng.randint(0, 60)] if texts and rng.random() < 0.8 else []
    prompt = start + random_prompt(rng.getrandbits(30), rng.randint(1, 30), 64)
    request = make_request(
        name,
        prompt,
        max_tokens=rng.randint(2, 12),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.getrandbits(60),
    )
    return replace(request, log=rng.random() < 0.8, scope=rng.choice(["a", "b"]))


def run_history(rig: Rig, rng: random.Random, num_requests: int) -> dict[str, DecodeRequest]:
    """Join, cancel and swap at random; every answer must be a start of the reference."""
    got = Received()
    requests: dict[str, DecodeRequest] = {}
    texts: list[list[int]] = []
    worked = True
    while worked or len(requests) < num_requests:
        if len(requests) < num_requests and rng.random() < 0.5:
            request = draw_request(rng, f"r{len(requests)}", texts)
            requests[request.request_id] = request
            rig.engine.submit(request, got)
            texts.append(list(request.prompt_ids))
        if requests and rng.random() < 0.1:
            rig.engine.cancel(rng.choice(list(requests)))
        if rig.drafter.kind == "block" and rng.random() < 0.1:
            rig.stage("block", rng.randint(1, 99))
        worked = rig.engine.step().worked
        texts += [list(trace.prompt_ids + trace.output_ids) for trace in rig.traces[len(texts) :]]
    target = rig.engine.parts.target
    for name, request in requests.items():
        ids = tuple(token for delta in got.deltas[name] for token in delta.token_ids)
        assert ids == reference_tokens(target, request)[: len(ids)], name
    return requests


@pytest.mark.parametrize(("dtype", "deterministic"), DTYPES)
@pytest.mark.parametrize("kind", ["block", "auto", "head", "memory", "none"])
def test_answers_equal_whole_forwards_in_random_mixes_that_share_prefixes(
    kind, dtype, deterministic
):
    seed = 31
    print(f"seed {seed}")
    target = build_target("tiny-mix", dtype=dtype, seed=3, deterministic=deterministic, layers=3)
    rig = make_rig(target, kind)
    run_history(rig, random.Random(seed), 14)
    stats = rig.engine.stats()
    assert 50 < stats.reused_tokens < stats.prompt_tokens


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_answers_equal_whole_forwards_in_twenty_more_mixes(seed):
    rng = random.Random(seed)
    dtype, deterministic = rng.choice(DTYPES)
    target = build_target("tiny-mix", dtype=dtype, seed=seed, deterministic=deterministic)
    rig = make_rig(target, rng.choice(["block", "auto"]), draft_len=rng.randint(1, 8))
    run_history(rig, rng, 120)  # how many prefixes meet depends on who is still computing
    assert rig.engine.stats().reused_tokens > 100


def test_greedy_answers_of_rejection_sampling_are_those_of_whole_forwards():
    target = build_target("tiny-mix", seed=3)
    rig = make_rig(target, "block", verification=Verification.REJECTION)
    prompt = random_prompt(1, 50, 64)
    requests = [make_request(f"r{n}", [*prompt[: 10 * n], n]) for n in range(6)]
    for request, result in zip(requests, decode_batch(rig.engine, requests), strict=True):
        assert result.token_ids == reference_tokens(target, request)
    assert rig.engine.stats().reused_tokens > 50


def trace_of(rig: Rig, request: DecodeRequest) -> Trace:
    decode_batch(rig.engine, [request])
    return rig.traces[-1]


def as_bits(trace: Trace) -> list[np.ndarray]:
    logits = [trace.top_logits.view(np.int32), trace.logsumexp.view(np.int32)]
    return [np.array(trace.output_ids), trace.top_ids, *logits]


@pytest.mark.parametrize("cut", [1, 4, 5, 15, 16, 17, 40, 58, 59])
def test_cold_and_warm_answers_are_equal_bits_in_deterministic_mode_wherever_reuse_is_cut(cut):
    target = build_target("tiny-rand", dtype=torch.float32, seed=8, deterministic=True)
    prompt = random_prompt(7, 60, 64)
    asked = make_request("asked", prompt, temperature=1.0, seed=5)
    cold = trace_of(make_rig(target, "block", prefix_scope="off"), asked)
    rig = make_rig(target, "block")
    other = [*prompt[:cut], (prompt[cut] + 1) % 64, *random_prompt(8, 9, 64)]
    trace_of(rig, make_request("before", other, max_tokens=3))
    warm = trace_of(rig, asked)
    assert rig.engine.stats().reused_tokens == cut
    for one, same in zip(as_bits(cold), as_bits(warm), strict=True):
        assert np.array_equal(one, same)
    assert warm.rounds == cold.rounds


def test_alpha_of_a_perfect_draft_is_exactly_one_after_reuse():
    target = build_target("tiny-block", seed=4)
    drafter = real_drafter(target, "block", LIMITS, zero_block_output=False)
    rig = make_rig(target, drafter, draft_len=4)
    prompt = random_prompt(2, 70, 64)
    for n in range(6):
        request = make_request(
            f"r{n}", [*prompt[: 69 - 11 * n], n], temperature=n % 2 * 1.0, top_k=4, seed=n
        )
        (result,) = decode_batch(rig.engine, [request])
        assert result.num_reused == (0 if n == 0 else 69 - 11 * n)
        assert result.counts.acceptance_rate() == 1.0
    counts = rig.engine.stats().counts
    assert counts.accepted == counts.judged > 60


def test_both_caches_hold_all_committed_tokens_but_the_last_after_reuse():
    target = build_target("tiny-rand", seed=6)
    rig = make_rig(target, "block", draft_len=3)
    prompt = random_prompt(3, 40, 64)
    decode_batch(rig.engine, [make_request("before", [*prompt[:29], 1])])
    rig.stage("block", 7)  # the copied draft keys and values are those of version 0
    rig.engine.submit(make_request("r", prompt), Received())
    for _ in range(6):
        rig.engine.step()
    (session,) = rig.engine.scheduler.sessions()
    assert session.num_reused == 29
    assert session.num_cached == len(session.tokens) - 1 > 42
    assert isinstance(rig.drafter, BlockDrafter)
    row, length = session.row, session.num_cached
    held = [c.data[:, :, row, :, :length].clone() for c in (rig.engine._cache, rig.drafter.cache)]
    with torch.inference_mode():
        plan = target.plan([Segment(row, 0, tuple(session.tokens[:-1]))])
        hidden = target.shallow(plan, rig.engine._cache)
        rig.drafter.observe(hidden, plan)
        target.deep(hidden, plan, rig.engine._cache)
    whole = [c.data[:, :, row, :, :length] for c in (rig.engine._cache, rig.drafter.cache)]
    for one, other in zip(held, whole, strict=True):
        # Sums in another order; a wrong position or token shows in the first digit.
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def run(rig: Rig) -> int:
    """Step to the end; returns the prompt tokens that went through the target."""
    num_computed = 0
    while (report := rig.engine.step()).worked:
        num_computed += report.num_prefill_tokens
    return num_computed


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("num_choices", [3, 7])  # 4 rows
@pytest.mark.parametrize("length", [2, 50])
def test_choices_of_a_request_compute_their_prompt_once(length, num_choices, log):
    target = build_target("tiny-mix", seed=3)
    rig = make_rig(target, "block")
    base = make_request("many", random_prompt(1, length, 64), temperature=1.0, seed=3)
    choices = [
        replace(base, log=log, sampling=replace(base.sampling, choice_index=index))
        for index in range(num_choices)
    ]
    got = Received()
    rig.engine.submit_all(choices, got)
    assert run(rig) == length - 1
    for index, request in enumerate(choices):
        own = [delta for delta in got.deltas["many"] if delta.choice_index == index]
        ids = tuple(token for delta in own for token in delta.token_ids)
        assert ids == reference_tokens(target, request)
        assert own[-1].num_reused == (0 if index == 0 else length - 1)


def test_a_prompt_that_arrives_while_its_prefix_is_read_waits_for_it_and_goes_on_without_it():
    target = build_target("tiny-mix", seed=3)
    prompt = random_prompt(1, 96, 64)  # whole chunks: a rest below a chunk is not waited for
    rig = make_rig(target, "block")
    got = Received()
    requests = [make_request(f"r{n}", [*prompt, n, 5]) for n in range(3)]
    for request in requests:
        rig.engine.submit(request, got)
    for _ in range(3):  # of 16 tokens each; all of them go to the first prompt
        assert rig.engine.step().num_prefill_tokens == 16
    rig.engine.cancel("r0")
    assert run(rig) == 96 + 1 + 1 - 48  # r1 finishes the prefix; r1 and r2 add a token each
    for request in requests[1:]:
        ids = [t for delta in got.deltas[request.request_id] for t in delta.token_ids]
        assert tuple(ids) == reference_tokens(target, request)


def test_few_tokens_in_common_are_not_waited_for():
    rig = make_rig(build_target("tiny-mix", seed=3), "none")
    for n in range(2):
        rig.engine.submit(make_request(f"r{n}", [1, 2, 3, *[10 + n] * 5]), Received())
    assert rig.engine.step().num_prefill_tokens == 2 * 7


def test_a_row_cancelled_in_its_prefill_is_offered_as_far_as_it_was_computed():
    target = build_target("tiny-mix", seed=3)
    rig = make_rig(target, "block")
    request = make_request("r", random_prompt(1, 100, 64))
    rig.engine.submit(replace(request, request_id="gone"), Received())
    rig.engine.step()
    rig.engine.step()
    rig.engine.cancel("gone")
    rig.engine.step()
    (result,) = decode_batch(rig.engine, [request])
    assert result.num_reused == 32  # two chunks of 16
    assert result.token_ids == reference_tokens(target, request)


def test_prompt_logprobs_need_every_position_and_serve_others():
    target = build_target("tiny-mix", seed=3)
    rig = make_rig(target, "block")
    prompt = random_prompt(1, 30, 64)
    scored = make_request("scored", prompt, prompt_logprobs=2, logprobs=2)
    cold, warm = (decode_batch(rig.engine, [scored])[0] for _ in range(2))
    assert cold.num_reused == warm.num_reused == 0
    assert warm.prompt_logprobs == cold.prompt_logprobs
    assert len(warm.prompt_logprobs) == 30
    assert decode_batch(rig.engine, [make_request("r", prompt)])[0].num_reused == 29
