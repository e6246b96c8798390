"""Log-probabilities of the prompt, and requests that want nothing else (echo)."""

from __future__ import annotations

import pytest

from dvi.decoding import EngineLimits, decode_batch
from dvi.types import FinishReason
from tests.decoding.engines import Received, make_request, make_rig
from tests.decoding.plainly import raw_logits
from tests.drafting.rows import random_prompt
from tests.rigs import build_target


def limits(chunk_len: int) -> EngineLimits:
    return EngineLimits(
        num_rows=3, max_queue=9, max_context_len=160, max_draft_len=8, top_ids=8,
        prefill_chunk_len=chunk_len, shared_prefill_chunk_len=max(chunk_len // 2, 1),
    )  # fmt: skip


@pytest.mark.parametrize("chunk_len", [3, 40, 200])
def test_prompt_logprobs_are_those_of_one_forward_however_the_prompt_is_cut(chunk_len):
    target = build_target("tiny-mix", seed=2)
    requests = [
        make_request(f"r{n}", random_prompt(n, n, 64), prompt_logprobs=n % 3, max_tokens=4)
        for n in (1, 2, 37, 90)
    ]
    rig = make_rig(target, "block", limits=limits(chunk_len))
    for request, result in zip(requests, decode_batch(rig.engine, requests), strict=True):
        prompt = list(request.prompt_ids)
        assert result.prompt_logprobs[0] is None
        assert len(result.prompt_logprobs) == len(prompt)
        rows = raw_logits(target, prompt).log_softmax(-1)
        for row, token_id, entry in zip(rows, prompt[1:], result.prompt_logprobs[1:], strict=False):
            assert entry.token_id == token_id
            # float64: chunked and whole forwards differ by rounding only
            assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-9)
            top = row.topk(request.sampling.prompt_logprobs)
            assert [one for one, _ in entry.top] == top.indices.tolist()


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_prompt_logprobs_come_once_and_first(max_tokens):
    rig = make_rig(build_target("tiny-mix", seed=2), "head", limits=limits(8))
    received = Received()
    request = make_request("r", random_prompt(1, 20, 64), prompt_logprobs=1, max_tokens=max_tokens)
    rig.engine.submit(request, received)
    while rig.engine.step().worked:
        pass
    deltas = received.deltas["r"]
    assert len(deltas[0].prompt_logprobs) == 20
    assert all(delta.prompt_logprobs is None for delta in deltas[1:])
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert sum(len(delta.token_ids) for delta in deltas) == max_tokens


def test_a_request_may_want_its_prompt_read_and_nothing_generated():
    target = build_target("tiny-mix", seed=2)
    rig = make_rig(target, "head", limits=limits(8))
    requests = [
        make_request(f"r{n}", random_prompt(n, n, 64), prompt_logprobs=0, max_tokens=0)
        for n in (1, 2, 30, 31, 5, 1, 1)  # more than rows, some without any prefill
    ]
    results = decode_batch(rig.engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert result.token_ids == ()
        assert result.finish_reason is FinishReason.LENGTH
        assert len(result.prompt_logprobs) == len(request.prompt_ids)
    stats = rig.engine.stats()
    assert stats.generated_tokens == stats.counts.rounds == 0
    assert stats.requests["length"] == len(requests)
    assert rig.traces == []  # nothing was said: nothing to learn from


def test_nothing_to_generate_and_nothing_to_read_is_refused():
    rig = make_rig(build_target("tiny-mix", seed=2), "head")
    for fields in ({"max_tokens": 0}, {"logprobs": -1}, {"prompt_logprobs": -1}):
        with pytest.raises(ValueError, match=next(iter(fields))):
            rig.engine.submit(make_request("r", (1,), **fields), Received())


def test_a_request_that_asks_for_no_logprobs_gets_none():
    rig = make_rig(build_target("tiny-mix", seed=2), "head")
    (result,) = decode_batch(rig.engine, [make_request("r", (1, 2, 3))])
    assert result.logprobs == ()
    assert result.prompt_logprobs is None
