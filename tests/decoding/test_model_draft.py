"""``drafter=model`` in the engine: answers stay the target's, and a copy of it is always right."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from dvi.config import DecodingConfig
from dvi.decoding import decode_batch
from dvi.decoding.limits import EngineLimits
from dvi.drafting.auto import AutoDrafter
from dvi.drafting.branch import DrafterRoom
from dvi.drafting.factory import make_memory_drafter
from dvi.drafting.model import ModelDrafter
from dvi.types import DecodeRequest, Source, Verification
from tests.decoding.engines import LIMITS, Rig, make_request, make_rig
from tests.decoding.profiles import profile
from tests.drafting.pairs import copy_of, model_drafter, small_model
from tests.drafting.rows import config_for, make_adapter, random_prompt, random_tensors
from tests.rigs import build_target

GATE_SEED = 20240704  # of the sample that the gate runs


def cases() -> list[tuple[int, int, int]]:
    """(K, batch, temperature), every one."""
    return list(itertools.product(range(1, 9), range(1, 9), (0, 1)))


def gate_cases() -> list[tuple[int, int, int]]:
    return random.Random(GATE_SEED).sample(cases(), 5)


def stage(rig: Rig, drafter: ModelDrafter, version: int, scale: float) -> None:
    layout = drafter.branch.layout
    tensors = random_tensors(layout, version, scale)
    rig.slot.stage(drafter.prepare(make_adapter(layout, tensors, version)))


def requests_of(rng: random.Random, batch: int, temperature: int) -> list[DecodeRequest]:
    """Some begin alike, so that prefixes are shared while versions are exchanged."""
    common = random_prompt(rng.getrandbits(30), 45, 64)
    requests = []
    for index in range(batch):
        own = random_prompt(rng.getrandbits(30), rng.choice([1, 2, 9, 33]), 64)
        prompt = (common + own) if rng.random() < 0.5 else own
        filters = rng.choice([{}, {"top_p": 0.8}, {"top_k": 9}]) if temperature else {}
        requests.append(
            make_request(
                f"r{index}",
                prompt,
                max_tokens=rng.randint(5, 14),
                temperature=float(temperature),
                seed=rng.getrandbits(64),
                **filters,
            )
        )
    return requests


def check_case(case: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> None:
    draft_len, batch, temperature = case
    rng = random.Random(repr(case))
    target = build_target(
        "tiny-mix", dtype=dtype, seed=draft_len, layers=3, deterministic=dtype == torch.float32
    )
    requests = requests_of(rng, batch, temperature)
    model = copy_of(target) if rng.random() < 0.5 else small_model(target, seed=batch)
    drafter = model_drafter(target, model, LIMITS.num_rows, LIMITS.row_len)
    rig = make_rig(target, drafter, draft_len=draft_len, prefix_scope="global")
    answers: dict[str, list[int]] = {one.request_id: [] for one in requests}
    for request in requests:
        rig.engine.submit(request, lambda d: answers[d.request_id].extend(d.token_ids))
    scale = rng.choice([0.1, 1.0, 100.0])
    while rig.engine.step().worked:
        if rng.random() < 0.3:
            stage(rig, drafter, rng.randint(1, 999), scale)
    plain = decode_batch(make_rig(target, "none").engine, requests)
    assert [tuple(one) for one in answers.values()] == [one.token_ids for one in plain]
    stats = rig.engine.stats()
    assert stats.counts.proposed > 0
    assert stats.drafter_faults == 0


@pytest.mark.parametrize("case", gate_cases(), ids=str)
def test_answers_equal_plain_decoding_under_random_versions_swapped_on_the_way(case):
    check_case(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=str)
def test_answers_equal_plain_decoding_for_every_length_batch_and_temperature(case):
    check_case(case)


@pytest.mark.parametrize("case", gate_cases()[:1], ids=str)
def test_answers_equal_plain_decoding_in_fp32_deterministic_mode(case):
    check_case(case, torch.float32)


@pytest.mark.parametrize("verification", list(Verification))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_copy_of_the_target_is_always_accepted_whatever_the_engine_does(
    temperature, verification
):
    """Chunks, shared prefixes, choices of one prompt, K = 0 rounds, rows used again."""
    target = build_target("tiny-rand", seed=4)
    limits = EngineLimits(
        num_rows=3,
        max_queue=64,
        max_context_len=200,
        max_draft_len=8,
        prefill_chunk_len=24,
        shared_prefill_chunk_len=7,
        top_ids=8,
    )
    drafter = model_drafter(target, copy_of(target), limits.num_rows, limits.row_len)
    rig = make_rig(
        target,
        drafter,
        draft_len=5,
        limits=limits,
        verification=verification,
        prefix_scope="global",
    )
    common = random_prompt(1, 60, 64)
    requests = [
        make_request(
            f"r{index}",
            common[: 60 if index % 3 else 20] + random_prompt(index, 3 + 5 * index, 64),
            draft_len=0 if index == 4 else None,
            temperature=temperature,
            seed=index,
            max_tokens=40 if index == 4 else 20,
        )
        for index in range(9)
    ]
    results = decode_batch(rig.engine, requests)
    counts = rig.engine.stats().counts
    assert counts.judged > 80
    assert counts.accepted == counts.judged
    assert sum(one.num_reused for one in results) > 100
    assert results[4].counts.proposed == 0


def test_a_copy_stays_right_beside_a_memory_that_proposes_too():
    target = build_target("tiny-rand", seed=4)
    model = model_drafter(target, copy_of(target), LIMITS.num_rows, LIMITS.row_len)
    room = DrafterRoom(LIMITS.num_rows, LIMITS.row_len, "")
    memory = make_memory_drafter(config_for("memory", target), target, room)
    drafter, decoding = AutoDrafter(model, memory), DecodingConfig(probe_interval_rounds=8)
    costs = profile(draft_step_s=0.01)  # a memory's guess is cheaper where it is as good
    rig = make_rig(target, drafter, decoding=decoding, costs=costs)
    requests = [
        make_request(f"r{index}", random_prompt(index % 3, 12, 64), max_tokens=60)
        for index in range(6)
    ]
    decode_batch(rig.engine, requests)
    rounds = [one for trace in rig.traces for one in trace.rounds]
    by_source = {source: [one for one in rounds if one.source is source] for source in Source}
    assert by_source[Source.MEMORY]
    assert by_source[Source.NEURAL]
    for one in by_source[Source.NEURAL]:
        assert one.num_accepted == len(one.proposed_ids)


def test_requests_that_span_a_swap_are_drafted_by_both_versions():
    target = build_target("tiny-rand", seed=4)
    drafter = model_drafter(target, small_model(target), LIMITS.num_rows, LIMITS.row_len)
    rig = make_rig(target, drafter, draft_len=2)
    answers = []
    rig.engine.submit(make_request("one", random_prompt(1, 9, 64), max_tokens=30), answers.append)
    for turn in range(40):
        if turn == 8:
            stage(rig, drafter, 5, 1.0)
        rig.engine.step()
    assert answers[-1].adapter_versions == (0, 5)
