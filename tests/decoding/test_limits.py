"""Limits, end tokens and stop strings are exact inside a block, streaming or not (cases C)."""

from __future__ import annotations

import pytest

from dvi.decoding import EngineLimits, decode_batch
from dvi.types import FinishReason, Source
from tests.decoding.engines import (
    LIMITS,
    TEXTS,
    LetterDecoder,
    make_request,
    make_rig,
    real_drafter,
    with_sampling,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

NUM_POSITIONS = 30


def text_of(ids: tuple[int, ...]) -> str:
    decoder = LetterDecoder()
    return "".join(map(decoder.push, ids)) + decoder.flush()


@pytest.mark.parametrize("draft_len", range(1, 9))
def test_never_more_than_max_tokens_and_never_a_proposal_beyond(draft_len):
    rig = make_rig(build_target("tiny-ident", seed=2), "head", draft_len=draft_len)
    requests = [make_request(f"m{n}", random_prompt(n, 4, 64), max_tokens=n) for n in range(1, 11)]
    for result, request in zip(decode_batch(rig.engine, requests), requests, strict=True):
        assert len(result.token_ids) == request.sampling.max_tokens
        assert result.finish_reason is FinishReason.LENGTH
        assert result.counts.proposed == result.counts.accepted
        assert result.counts.proposed < request.sampling.max_tokens


@pytest.mark.parametrize("draft_len", [1, 4, 8])
def test_an_answer_ends_at_the_context_limit_and_the_engine_goes_on(draft_len):
    limits = EngineLimits(num_rows=2, max_queue=99, max_context_len=40, max_draft_len=8, top_ids=8)
    rig = make_rig(build_target("tiny-ident", seed=3), "block", draft_len=draft_len, limits=limits)
    plain = make_rig(build_target("tiny-ident", seed=3), "none")
    for missing in range(1, 12):
        prompt = random_prompt(missing, 40 - missing, 64)
        (result,) = decode_batch(rig.engine, [make_request("c", prompt, max_tokens=64)])
        assert len(result.token_ids) == missing
        assert result.finish_reason is FinishReason.LENGTH
        (expected,) = decode_batch(plain.engine, [make_request("c", prompt, max_tokens=missing)])
        assert result.token_ids == expected.token_ids
    for length in (40, 41):
        with pytest.raises(ValueError, match=f"prompt has {length} tokens; allowed: 1 to 39"):
            rig.engine.submit(make_request("c", [1] * length), print)
    (after,) = decode_batch(rig.engine, [make_request("d", (1, 2), max_tokens=3)])
    assert len(after.token_ids) == 3


@pytest.mark.parametrize("rule", ["end_token_ids", "stop_token_ids"])
def test_an_answer_ends_at_the_first_stop_token_at_each_of_thirty_positions(rule):
    # One perfect draft and eight proposals: every position of a block is hit.
    target = build_target("tiny-ident", seed=7)
    rig = make_rig(target, "head", draft_len=8)
    prompt = random_prompt(1, 9, 64)
    base = make_request("s", prompt, max_tokens=NUM_POSITIONS, temperature=1.0, seed=3)
    (whole,) = decode_batch(rig.engine, [base])
    requests = [with_sampling(base, **{rule: (token,)}) for token in whole.token_ids]
    before = rig.engine.stats()
    results = decode_batch(rig.engine, requests)
    for token, result in zip(whole.token_ids, results, strict=True):
        end = whole.token_ids.index(token) + 1
        assert result.token_ids == whole.token_ids[:end]
        assert result.finish_reason is FinishReason.STOP
        assert text_of(whole.token_ids[: end - 1]) == result.text
        assert result.counts.acceptance_rate() in (1.0, None)
        assert result.sources[-1] is Source.TARGET
    after = rig.engine.stats()
    delivered = sum(len(result.token_ids) for result in results)
    assert after.generated_tokens - before.generated_tokens == delivered
    assert [len(t.output_ids) for t in rig.traces[1:]] == [len(t.top_ids) for t in rig.traces[1:]]
    assert sum(len(trace.output_ids) for trace in rig.traces[1:]) == delivered


def test_ignore_eos_decodes_past_end_tokens_and_not_past_stop_tokens():
    rig = make_rig(build_target("tiny-ident", seed=7), "head")
    base = make_request("s", random_prompt(1, 9, 64), temperature=1.0, seed=3)
    (whole,) = decode_batch(rig.engine, [base])
    token = whole.token_ids[5]
    (result,) = decode_batch(
        rig.engine, [with_sampling(base, ignore_eos=True, end_token_ids=(token,))]
    )
    assert result.token_ids == whole.token_ids
    (result,) = decode_batch(
        rig.engine, [with_sampling(base, ignore_eos=True, stop_token_ids=(token,))]
    )
    assert result.token_ids[-1] == token
    assert len(result.token_ids) <= 6


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("draft_len", [2, 8])
def test_a_stop_string_anywhere_in_a_block_cuts_text_ids_and_counts_at_its_token(
    include, draft_len
):
    rig = make_rig(build_target("tiny-ident", seed=7), "head", draft_len=draft_len)
    base = make_request("s", random_prompt(1, 9, 64), max_tokens=20, temperature=1.0, seed=3)
    (whole,) = decode_batch(rig.engine, [base])
    text = whole.text
    stops = [text[start : start + 5] for start in range(0, len(text) - 5)]
    requests = [
        with_sampling(base, stop=("#", stop), include_stop_str_in_output=include) for stop in stops
    ]
    for stop, result in zip(stops, decode_batch(rig.engine, requests), strict=True):
        start = text.index(stop)
        assert result.text == text[: start + (len(stop) if include else 0)]
        assert result.finish_reason is FinishReason.STOP
        # The last kept token is the one whose text completed the stop string.
        assert result.token_ids == whole.token_ids[: len(result.token_ids)]
        kept = "".join(TEXTS[one] for one in result.token_ids)
        shorter = "".join(TEXTS[one] for one in result.token_ids[:-1])
        assert stop in kept
        assert stop not in shorter or result.token_ids[-2] >= 60  # half a character came later
        assert len(result.token_ids) == result.counts.rounds + result.counts.accepted


def test_a_one_letter_stop_string_in_the_second_token_of_a_block_is_not_missed():
    rig = make_rig(build_target("tiny-ident", seed=7), "head", draft_len=8)
    base = make_request("s", random_prompt(1, 9, 64), temperature=1.0, seed=3)
    (whole,) = decode_batch(rig.engine, [base])
    letter = TEXTS[whole.token_ids[1]][0]
    (result,) = decode_batch(rig.engine, [with_sampling(base, stop=(letter,))])
    assert letter not in result.text
    assert len(result.token_ids) <= 2


def test_speculation_can_be_turned_off_or_shortened_by_a_request():
    rig = make_rig(build_target("tiny-ident", seed=7), "head", draft_len=6)
    off = make_request("off", (1, 2), draft_len=0)
    short = make_request("short", (1, 2), draft_len=2)
    (no_draft, two) = decode_batch(rig.engine, [off, short])
    assert no_draft.counts.proposed == 0
    assert no_draft.counts.rounds == 24
    assert two.counts.rounds == 8
    assert no_draft.token_ids == two.token_ids
    with pytest.raises(ValueError, match="max_draft_len is 9; allowed: 0 to 8"):
        rig.engine.submit(make_request("long", (1, 2), draft_len=9), print)


def test_drafters_that_propose_too_much_are_treated_as_failed():
    target = build_target("tiny-ident", seed=7)

    class Greedy:
        """Proposes one more than asked."""

        def __getattr__(self, name: str) -> object:
            return getattr(inner, name)

        def propose(self, requests, cache):
            longer = [
                type(one)(one.row, one.position, one.token, one.draft_len + 1, one.params)
                for one in requests
            ]
            return inner.propose(longer, cache)

    inner = real_drafter(target, "head", LIMITS)
    rig = make_rig(target, Greedy())
    (result,) = decode_batch(rig.engine, [make_request("r", (1, 2))])
    assert len(result.token_ids) == 24
    assert rig.engine.stats().drafter_faults == 1
