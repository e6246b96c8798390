"""End, stop and limit at every position of a block: everything is cut at the same token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dvi.decoding import decode_batch
from dvi.decoding.batch import Result
from dvi.types import DecodeRequest, FinishReason, Verification
from tests.decoding.engines import LIMITS, Rig, make_request, make_rig
from tests.decoding.letters import TEXTS
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

FIELDS = {
    "frequency_penalty": 0.6,
    "repetition_penalty": 1.2,
    "logprobs": 2,
    "logit_bias": tuple((half, -100.0) for half in range(60, 64)),  # their text comes late
}
NUM_FREE = 12  # tokens of the answer that nothing cuts
DRAFT_LEN = 6  # so the cuts lie before, in and after a block


def perfect_rig(mode: Verification = Verification.COUPLED) -> Rig:
    """Every proposal is accepted: the draft equals the target and sees the same penalties."""
    target = build_target("tiny-ident", seed=6)
    return make_rig(target, "head", draft_len=DRAFT_LEN, limits=LIMITS, verification=mode)


def free_request(**fields: object) -> DecodeRequest:
    sampling = {"max_tokens": NUM_FREE, **FIELDS, **fields}
    return make_request("r", random_prompt(3, 4, 60), **sampling)


def cut_at(rule: str, place: int, free: Result) -> dict[str, object]:
    """Fields that end the answer with its token ``place``."""
    token_id = free.token_ids[place]
    return {
        "end": {"end_token_ids": (token_id,)},
        "stop_id": {"stop_token_ids": (token_id,)},
        "string": {"stop": (TEXTS[token_id],)},
        "limit": {"max_tokens": place + 1},
    }[rule]


@pytest.mark.parametrize("place", range(NUM_FREE))
@pytest.mark.parametrize("rule", ["end", "stop_id", "string", "limit"])
def test_text_ids_logprobs_counts_and_metrics_end_with_the_same_token(rule, place):
    """Case C5, at every position of a block, with penalties."""
    request = free_request()
    (free,) = decode_batch(perfect_rig().engine, [request])
    assert len(free.logprobs) == len(free.token_ids) == NUM_FREE
    fields = cut_at(rule, place, free)
    rig = perfect_rig()
    (cut,) = decode_batch(
        rig.engine, [replace(request, sampling=replace(request.sampling, **fields))]
    )
    last = free.token_ids.index(free.token_ids[place])  # where the rule is first met
    if rule == "string":
        joined = "".join(TEXTS[one] for one in free.token_ids)
        end = joined.find(TEXTS[free.token_ids[place]]) + len(TEXTS[free.token_ids[place]])
        last = next(n for n in range(NUM_FREE) if joined_len(free, n) >= end)
    if rule == "limit":
        last = place
    assert cut.token_ids == free.token_ids[: last + 1]
    assert [one.token_id for one in cut.logprobs] == list(cut.token_ids)
    for got, expected in zip(cut.logprobs, free.logprobs, strict=False):
        # The same positions in blocks of another width: float64 rounding only.
        assert got.logprob == pytest.approx(expected.logprob, abs=1e-9)
    is_length = rule == "limit" or (rule == "string" and last + 1 > NUM_FREE)
    assert cut.finish_reason is (FinishReason.LENGTH if is_length else FinishReason.STOP)
    counts, stats = cut.counts, rig.engine.stats()
    assert len(cut.token_ids) == counts.rounds + counts.accepted == stats.generated_tokens
    assert counts.accepted == counts.judged == counts.proposed  # a perfect draft stays perfect
    (trace,) = rig.traces
    assert trace.output_ids == cut.token_ids
    assert len(trace.top_ids) == len(cut.token_ids)


def joined_len(free: Result, place: int) -> int:
    return sum(len(TEXTS[one]) for one in free.token_ids[: place + 1])


@pytest.mark.parametrize("mode", list(Verification))
def test_an_answer_is_cut_at_max_tokens_for_every_limit_and_draft_length(mode):
    target = build_target("tiny-ident", seed=6)
    for draft_len in (1, 3, 8):
        rig = make_rig(target, "head", draft_len=draft_len, verification=mode)
        requests = [
            replace(
                free_request(temperature=1.0, max_tokens=limit, min_tokens=limit),
                request_id=f"r{limit}",
            )
            for limit in range(1, 11)
        ]
        for limit, result in enumerate(decode_batch(rig.engine, requests), start=1):
            assert len(result.token_ids) == len(result.logprobs) == limit
            assert result.finish_reason is FinishReason.LENGTH


def test_a_stop_string_does_not_count_before_min_tokens_and_may_begin_there():
    request = free_request()
    (free,) = decode_batch(perfect_rig().engine, [request])
    texts = [TEXTS[one] for one in free.token_ids]
    early = replace(request.sampling, stop=(texts[1],), min_tokens=5)
    (result,) = decode_batch(perfect_rig().engine, [replace(request, sampling=early)])
    assert len(result.token_ids) > 5
    spanning = texts[4][-1] + texts[5][0]  # ends in the sixth token, begins in the fifth
    late = replace(request.sampling, stop=(spanning,), min_tokens=5)
    (result,) = decode_batch(perfect_rig().engine, [replace(request, sampling=late)])
    assert result.token_ids == free.token_ids[:6]
    assert result.text == "".join(texts[:5])[:-1]
