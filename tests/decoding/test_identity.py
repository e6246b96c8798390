"""Answers are the target's own, token for token, whatever drafts beside it (invariant 1)."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from dvi.decoding import decode_batch
from dvi.modeling.linear import Quantization
from dvi.types import DecodeRequest
from tests.decoding.engines import (
    LIMITS,
    Rig,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

NUM_ADAPTERS = 100
GATE_SEED = 20240611  # of the sample that the gate runs
GATE_ADAPTERS = 12


def draw_cases() -> list[tuple[int, int, int, int]]:
    """(adapter, K, batch, temperature): a Latin design over 100 adapters.

    128 triples of 8 K x 8 batch x 2 temperatures; 100 of them keep every pair of values: batch x K
    pairs are taken first with alternating temperature (64 cases), the rest at random.
    """
    rng = random.Random(1)
    cells = list(itertools.product(range(1, 9), range(1, 9)))
    cases = [(draft_len, batch, (draft_len + batch) % 2) for draft_len, batch in cells]
    cases += [
        (rng.randint(1, 8), rng.randint(1, 8), rng.randint(0, 1))
        for _ in range(NUM_ADAPTERS - len(cases))
    ]
    rng.shuffle(cases)
    return [(index + 1, *case) for index, case in enumerate(cases)]


def draw_requests(rng: random.Random, batch: int, temperature: int) -> list[DecodeRequest]:
    """Prompts and answers of different lengths, each with its own seed and filters."""
    requests = []
    for index in range(batch):
        sampling = {"temperature": float(temperature), "seed": rng.getrandbits(64)}
        if temperature:
            sampling |= rng.choice([{}, {"top_p": 0.8}, {"top_k": 9}, {"min_p": 0.05}])
        prompt = random_prompt(rng.getrandbits(30), rng.choice([1, 2, 9, 33]), 64)
        requests.append(
            make_request(f"r{index}", prompt, max_tokens=rng.randint(5, 14), **sampling)
        )
    return requests


def decode_with_swaps(
    rig: Rig, requests: list[DecodeRequest], rng: random.Random, adapter: int, scale: float
) -> list[tuple[int, ...]]:
    """Decode while versions are exchanged at random rounds."""
    deltas: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        rig.engine.submit(request, lambda d: deltas[d.request_id].extend(d.token_ids))
    rig.stage("block", adapter, scale)
    while rig.engine.step().worked:
        if rng.random() < 0.3:
            rig.stage("block", rng.randint(1, 1000), scale)
    return [tuple(deltas[request.request_id]) for request in requests]


def check_case(
    case: tuple[int, int, int, int],
    dtype: torch.dtype,
    deterministic: bool,
    quantization: Quantization = Quantization.NONE,
) -> None:
    adapter, draft_len, batch, temperature = case
    print(f"case adapter={adapter} K={draft_len} batch={batch} temperature={temperature}")
    rng = random.Random(adapter)
    target = build_target(
        "tiny-mix",
        dtype=dtype,
        seed=adapter % 5,
        deterministic=deterministic,
        layers=3,
        quantization=quantization,
    )
    requests = draw_requests(rng, batch, temperature)
    scale = rng.choice([0.0, 0.3, 1.0, 10.0, 100.0])
    rows = rng.choice([None, 24])  # of 64
    drafter = real_drafter(target, "block", LIMITS, draft_vocab_size=rows)
    rig = make_rig(target, drafter, draft_len=draft_len, limits=LIMITS)
    answers = decode_with_swaps(rig, requests, rng, adapter, scale)
    plain = decode_batch(make_rig(target, "none").engine, requests)
    assert answers == [result.token_ids for result in plain]
    counts = rig.engine.stats().counts
    assert counts.proposed > 0  # else nothing was shown
    assert sum(map(len, answers)) == counts.rounds + counts.accepted


def test_every_pair_of_draft_length_batch_and_temperature_occurs():
    cases = draw_cases()
    assert len(cases) == NUM_ADAPTERS
    assert len({(k, batch) for _, k, batch, _ in cases}) == 64
    assert len({(k, temperature) for _, k, _, temperature in cases}) == 16
    assert len({(batch, temperature) for _, _, batch, temperature in cases}) == 16


def gate_cases() -> list[tuple[int, int, int, int]]:
    return random.Random(GATE_SEED).sample(draw_cases(), GATE_ADAPTERS)


@pytest.mark.parametrize("case", gate_cases(), ids=str)
def test_answers_equal_plain_decoding_for_sampled_adapters_lengths_and_batches(case):
    check_case(case, torch.float64, False)


@pytest.mark.slow
@pytest.mark.parametrize("case", draw_cases(), ids=str)
def test_answers_equal_plain_decoding_for_100_adapters(case):
    check_case(case, torch.float64, False)


@pytest.mark.parametrize("case", gate_cases()[:4], ids=str)
def test_answers_equal_plain_decoding_in_fp32_deterministic_mode(case):
    check_case(case, torch.float32, True)


@pytest.mark.parametrize("case", gate_cases()[4:8], ids=str)
def test_answers_equal_plain_decoding_with_an_int8_target(case):
    check_case(case, torch.float32, True, Quantization.INT8)


@pytest.mark.slow
@pytest.mark.parametrize("case", draw_cases()[1::4], ids=str)
def test_answers_equal_plain_decoding_with_an_int8_target_for_25_adapters(case):
    check_case(case, torch.float32, True, Quantization.INT8)


@pytest.mark.slow
@pytest.mark.parametrize("case", draw_cases()[::4], ids=str)
def test_answers_equal_plain_decoding_in_fp32_deterministic_mode_for_25_adapters(case):
    check_case(case, torch.float32, True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_plain_answers_equal_one_whole_forward_a_token(temperature):
    target = build_target("tiny-mix", seed=11)
    requests = [
        make_request(f"r{n}", random_prompt(n, n, 64), temperature=temperature, seed=n)
        for n in (1, 2, 17)
    ]
    for rig in (make_rig(target, "none"), make_rig(target, "head", draft_len=3)):
        results = decode_batch(rig.engine, requests)
        for request, result in zip(requests, results, strict=True):
            assert result.token_ids == reference_tokens(target, request)


@pytest.mark.parametrize("chunk_len", [1, 3, 7, 64])
def test_prefill_chunks_do_not_move_an_answer(chunk_len):
    target = build_target("tiny-mix", seed=2)
    limits = LIMITS.__class__(
        num_rows=3,
        max_queue=9,
        max_context_len=160,
        max_draft_len=8,
        prefill_chunk_len=chunk_len,
        shared_prefill_chunk_len=max(chunk_len // 2, 1),
    )
    requests = [
        make_request(f"r{n}", random_prompt(n, 5 + 13 * n, 64), temperature=1.0, seed=n)
        for n in range(5)
    ]
    results = decode_batch(make_rig(target, "block", limits=limits).engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert result.token_ids == reference_tokens(target, request)


def test_answers_do_not_depend_on_neighbours_that_join_leave_and_are_cancelled():
    check_neighbours(seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 30))
def test_answers_do_not_depend_on_neighbours_for_twenty_random_histories(seed):
    check_neighbours(seed)


def check_neighbours(seed: int) -> None:
    print(f"seed {seed}")
    target = build_target("tiny-mix", seed=6)
    rng = random.Random(seed)
    requests = draw_requests(rng, 8, 1) + draw_requests(rng, 8, 0)
    requests = [
        make_request(f"n{index}", one.prompt_ids, **{
            "max_tokens": 20, "temperature": one.sampling.temperature, "seed": index,
        })
        for index, one in enumerate(requests)
    ]  # fmt: skip
    rig = make_rig(target, "block", draft_len=5)
    answers: dict[str, list[int]] = {one.request_id: [] for one in requests}
    waiting = list(requests)
    cancelled: set[str] = set()
    worked = True
    while worked or waiting:
        if waiting and rng.random() < 0.5:
            rig.engine.submit(waiting.pop(0), lambda d: answers[d.request_id].extend(d.token_ids))
        if rng.random() < 0.1:
            victim = rng.choice(requests).request_id
            rig.engine.cancel(victim)
            cancelled.add(victim)
        worked = rig.engine.step().worked
    finished = [one for one in requests if one.request_id not in cancelled]
    assert 2 <= len(finished) < 16
    for request in requests:
        whole = reference_tokens(target, request)
        got = tuple(answers[request.request_id])
        assert got == whole[: len(got)]
        assert request.request_id in cancelled or got == whole


def test_seeds_decide_sampled_answers_and_repeat_them():
    target = build_target("tiny-rand", seed=1)
    prompt = random_prompt(4, 6, 64)
    requests = [
        make_request(f"s{seed}", prompt, temperature=1.0, seed=seed % 10) for seed in range(20)
    ]
    answers = [one.token_ids for one in decode_batch(make_rig(target).engine, requests)]
    assert answers[:10] == answers[10:]
    assert len(set(answers[:10])) == 10
