"""Memory and learned draft in one engine: answers stay the target's, counts stay true."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from dvi.config import DecodingConfig
from dvi.decoding import EngineLimits, decode_batch
from dvi.drafting.auto import sources_of
from dvi.types import DecodeRequest, Source
from tests.decoding.engines import (
    LIMITS,
    Rig,
    make_request,
    make_rig,
    real_drafter,
)
from tests.decoding.profiles import profile
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

GATE_CASES = [(kind, seed) for kind in ("memory", "auto") for seed in range(5)]
FULL_CASES = [(kind, seed) for kind in ("memory", "auto") for seed in range(100, 140)]
ADAPTIVE = DecodingConfig(probe_interval_rounds=8)


def draw_requests(rng: random.Random, num_requests: int) -> list[DecodeRequest]:
    """Requests that come again, so that a memory has something to say; seeds and filters vary."""
    prompts = [random_prompt(rng.getrandbits(30), rng.choice([1, 3, 9]), 64) for _ in range(4)]
    requests = []
    for index in range(num_requests):
        temperature = rng.choice([0.0, 0.0, 1.0])
        request = make_request(
            f"r{index}",
            rng.choice(prompts),
            max_tokens=rng.randint(5, 20),
            draft_len=rng.choice([None, None, 0, 2, 8]),
            temperature=temperature,
            seed=rng.randrange(3),
            **rng.choice([{}, {"top_k": 9}]),
        )
        log, scope = rng.random() < 0.8, rng.choice(["a", "b"])
        prediction = tuple(rng.randrange(64) for _ in range(rng.choice([0, 0, 12])))
        requests.append(replace(request, log=log, scope=scope, prediction_ids=prediction))
    return requests


def check_identity(kind: str, seed: int, dtype: torch.dtype, *, deterministic: bool) -> None:
    print(f"case kind={kind} seed={seed}")
    rng = random.Random(seed)
    target = build_target(
        "tiny-mix", dtype=dtype, seed=seed % 5, layers=3, deterministic=deterministic
    )
    config = ADAPTIVE if rng.random() < 0.7 else replace(ADAPTIVE, adaptive=False, draft_len=3)
    rig = make_rig(target, kind, decoding=config, costs=profile())
    requests = draw_requests(rng, 14)
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        rig.engine.submit(request, lambda d: answers[d.request_id].extend(d.token_ids))
    while rig.engine.step().worked:
        if kind == "auto" and rng.random() < 0.2:
            rig.stage(kind, rng.randint(1, 1000), rng.choice([0.0, 1.0, 30.0]))
    plain = decode_batch(make_rig(target, "none").engine, requests)
    assert [tuple(answers[one.request_id]) for one in plain] == [one.token_ids for one in plain]
    counts = rig.engine.stats().counts
    assert counts.by_source[Source.MEMORY].accepted > 0  # else nothing was shown
    if kind == "auto":
        assert counts.by_source[Source.NEURAL].proposed > 0


@pytest.mark.parametrize(("kind", "seed"), GATE_CASES)
def test_answers_equal_plain_decoding_whoever_proposes(kind, seed):
    check_identity(kind, seed, torch.float64, deterministic=False)


@pytest.mark.parametrize("kind", ["memory", "auto"])
def test_answers_equal_plain_decoding_in_fp32_deterministic_mode(kind):
    check_identity(kind, 77, torch.float32, deterministic=True)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seed"), FULL_CASES)
def test_answers_equal_plain_decoding_whoever_proposes_at_full_size(kind, seed):
    check_identity(kind, seed, torch.float64, deterministic=False)


@pytest.mark.parametrize("seed", range(3))
def test_counts_of_two_sources_add_up_everywhere(seed):
    rng = random.Random(seed)
    target = build_target("tiny-ident", seed=seed, layers=3)
    config = replace(ADAPTIVE, probe_interval_rounds=2)  # sources take turns
    rig = make_rig(target, "auto", decoding=config, costs=profile())
    requests = [replace(one, log=True) for one in draw_requests(rng, 30)]
    results = decode_batch(rig.engine, requests)
    stats = rig.engine.stats()
    counts = stats.counts
    for name in ("rounds", "proposed", "judged", "accepted"):
        assert getattr(counts, name) == sum(getattr(one.counts, name) for one in results)
    for name in ("proposed", "judged", "accepted"):
        by_source = sum(getattr(one, name) for one in counts.by_source.values())
        assert getattr(counts, name) == by_source
    assert stats.generated_tokens == counts.rounds + counts.accepted
    assert sum(stats.accepted_per_position) == counts.accepted
    assert sum(stats.proposed_per_position) == counts.proposed
    tokens = Counter(source for one in results for source in one.sources)
    assert tokens[Source.TARGET] == counts.rounds
    for source in (Source.NEURAL, Source.MEMORY):
        assert tokens[source] == counts.by_source[source].accepted > 0
    for trace in rig.traces:
        for one in trace.rounds:
            assert len(one.draft_logprobs) == (
                len(one.proposed_ids) if one.source is Source.NEURAL else 0
            )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_always_right_stays_right_after_memory_rounds(temperature):
    target = build_target("tiny-block", seed=2)
    drafter = real_drafter(target, "auto", LIMITS, zero_block_output=False)
    config = DecodingConfig(probe_interval_rounds=2)  # sources take turns
    rig = make_rig(target, drafter, decoding=config, costs=profile())
    sampling = {"temperature": temperature, "top_k": 4, "max_tokens": 40}
    requests = [
        make_request(f"r{n}", random_prompt(n % 3, 4, 64), seed=n, **sampling) for n in range(12)
    ]
    results = decode_batch(rig.engine, requests)
    counts = rig.engine.stats().counts.by_source
    assert counts[Source.MEMORY].rounds > 10
    assert counts[Source.MEMORY].judged > counts[Source.MEMORY].accepted  # rollbacks as well
    assert counts[Source.NEURAL].rounds > 10
    assert counts[Source.NEURAL].accepted == counts[Source.NEURAL].judged
    plain = decode_batch(make_rig(target, "none").engine, requests)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]


def memory_counts(rig: Rig, request: DecodeRequest) -> int:
    """Tokens proposed from memory to one request."""
    before = rig.engine.stats().counts.by_source.get(Source.MEMORY)
    proposed = before.proposed if before else 0
    decode_batch(rig.engine, [request])
    after = rig.engine.stats().counts.by_source.get(Source.MEMORY)
    return (after.proposed if after else 0) - proposed


def rig_of_distinct_text() -> tuple[Rig, DecodeRequest]:
    """A target whose answer to this request repeats nothing of its own text."""
    target = build_target("tiny-rand", seed=4)
    request = make_request("r", (1, 2), max_tokens=8)
    (plain,) = decode_batch(make_rig(target, "none").engine, [request])
    text = (1, 2, *plain.token_ids)
    assert len(set(text)) == len(text)
    config = DecodingConfig(adaptive=False, draft_len=4)
    return make_rig(target, "memory", decoding=config), request


def test_what_was_served_to_a_scope_is_proposed_to_it_alone():
    rig, request = rig_of_distinct_text()
    alice = replace(request, scope="alice")
    assert memory_counts(rig, alice) == 0
    assert memory_counts(rig, replace(request, scope="bob")) == 0
    assert memory_counts(rig, replace(request, scope="")) == 0
    assert memory_counts(rig, alice) > 0


def test_nothing_of_an_unlogged_request_is_remembered():
    rig, request = rig_of_distinct_text()
    assert memory_counts(rig, replace(request, log=False)) == 0
    assert memory_counts(rig, request) == 0
    assert memory_counts(rig, replace(request, log=False)) > 0  # but it may read what was


def test_nothing_of_a_cancelled_request_is_remembered():
    rig, request = rig_of_distinct_text()
    rig.engine.submit(request, lambda _: None)
    for _ in range(5):
        rig.engine.step()
    rig.engine.cancel("r")
    while rig.engine.step().worked:
        pass
    assert memory_counts(rig, request) == 0


def test_a_prediction_speeds_up_its_own_request():
    rig, request = rig_of_distinct_text()
    (plain,) = decode_batch(make_rig(rig.engine.parts.target, "none").engine, [request])
    told = replace(request, prediction_ids=plain.token_ids, log=False)
    (result,) = decode_batch(rig.engine, [told])
    assert result.token_ids == plain.token_ids
    assert result.counts.acceptance_rate() == 1.0
    assert result.counts.rounds == 2  # five tokens, then the three left
    assert memory_counts(rig, replace(request, log=False)) == 0


def test_remembered_answers_of_a_store_are_proposed_at_once():
    rig, request = rig_of_distinct_text()
    (plain,) = decode_batch(make_rig(rig.engine.parts.target, "none").engine, [request])
    rig.engine.parts.drafter.remember(request.prompt_ids, plain.token_ids, "")
    (result,) = decode_batch(rig.engine, [request])
    assert result.counts.rounds == 2


def test_a_failing_memory_costs_speed_only(caplog):
    rig, request = rig_of_distinct_text()

    def broken(_: object) -> object:
        raise RuntimeError("memory failed")

    sources_of(rig.drafter).memory.recall = broken
    (result,) = decode_batch(rig.engine, [request])
    (plain,) = decode_batch(make_rig(rig.engine.parts.target, "none").engine, [request])
    assert result.token_ids == plain.token_ids
    assert rig.engine.stats().drafter_faults == 1
    assert "goes on" in caplog.text or "go on" in caplog.text


def test_the_memory_follows_a_request_over_a_reused_row():
    target = build_target("tiny-mix", seed=6, layers=3)
    limits = EngineLimits(num_rows=1, max_queue=8, max_context_len=160, max_draft_len=8, top_ids=4)
    rig = make_rig(target, "auto", limits=limits, decoding=ADAPTIVE, costs=profile())
    requests = [make_request(f"r{n}", (5 + n, 6), max_tokens=30) for n in range(5)]
    results = decode_batch(rig.engine, requests)
    plain = decode_batch(make_rig(target, "none", limits=limits).engine, requests)
    assert [one.token_ids for one in results] == [one.token_ids for one in plain]
