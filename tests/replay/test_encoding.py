from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from dvi.replay.encoding import decode, encode
from dvi.types import Round, Source, Trace
from tests.replay.fakes import make_trace


def round_trip(trace: Trace) -> Trace:
    return decode(trace.request_id, trace.domain, trace.user_hash, encode(trace))


@pytest.mark.parametrize("num_tokens", [0, 1, 8, 73])
def test_every_field_of_a_trace_survives_the_round_trip(num_tokens: int) -> None:
    trace = make_trace("r", num_tokens, choice_index=3, user_hash="u")
    back = round_trip(trace)
    for field in fields(Trace):
        given, got = getattr(trace, field.name), getattr(back, field.name)
        if isinstance(given, np.ndarray):
            assert got.dtype == given.dtype
            assert np.array_equal(got, given)
            assert got.flags.writeable
        else:
            assert got == given


def test_rounds_of_all_sources_and_lengths_survive() -> None:
    rounds = (
        Round(Source.TARGET, 0, (), (), 0),
        Round(Source.NEURAL, 2**31 - 1, (1, 2, 3), (-0.5, -2.0, -8.25), 2),
        Round(Source.MEMORY, 4, (9, 8), (), 2),
        Round(Source.NEURAL, 5, (7,), (-1.5,), 0),
    )
    num_tokens = 1 + 3 + 3 + 1  # accepted + 1 of each round
    trace = replace(make_trace("r", num_tokens), rounds=rounds)
    assert round_trip(trace).rounds == rounds


def test_a_token_costs_about_half_a_kilobyte() -> None:
    # Per token: 64 ids and 64 logits (512), logsumexp (4), output id (4); half a round of
    # 4 + 2 ids + 2 log-probabilities words (16). The header is a constant of a few hundred bytes.
    per_token = (
        encode(make_trace("r", 200)).num_bytes() - encode(make_trace("r", 100)).num_bytes()
    ) / 100
    assert per_token == pytest.approx(512 + 4 + 4 + 16, abs=0.2)
    assert encode(make_trace("r", 0)).num_bytes() < 800


def test_a_trace_whose_arrays_do_not_fit_its_tokens_is_refused() -> None:
    trace = make_trace("r", 8)
    broken = [
        replace(trace, top_ids=trace.top_ids[:-1]),
        replace(trace, top_logits=trace.top_logits[:, :-1]),
        replace(trace, logsumexp=trace.logsumexp[:-1]),
        replace(trace, rounds=trace.rounds[:-1]),
        replace(trace, rounds=(replace(trace.rounds[0], draft_logprobs=()), *trace.rounds[1:])),
    ]
    for one in broken:
        with pytest.raises(ValueError, match=r"\d"):
            encode(one)


def test_every_field_that_decides_tokens_survives_and_old_rows_stay_readable() -> None:
    fields_ = {
        "presence_penalty": 0.1,
        "frequency_penalty": -1.7,
        "repetition_penalty": 1.3,
        "logit_bias": ((5, -100.0), (9, 0.1)),
        "min_tokens": 4,
        "logprobs": 3,
        "prompt_logprobs": 0,
        "grammar": '{"grammars": []}',
    }
    plain = make_trace("r", 8)
    trace = replace(plain, sampling=replace(plain.sampling, **fields_))
    assert round_trip(trace).sampling == trace.sampling
    content = encode(plain)
    header = json.loads(content.unsealed().header)
    for name in fields_:
        del header["sampling"][name]
    old = replace(content, header=json.dumps(header))
    assert decode("r", plain.domain, plain.user_hash, old).sampling == plain.sampling
