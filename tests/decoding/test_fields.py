"""Every field acts on every token of a block: answers equal plain decoding token for token."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from dvi.decoding import decode_batch
from dvi.decoding.grammar import regex_grammar
from dvi.modeling.target import TargetModel
from dvi.types import DecodeRequest
from tests.decoding.engines import LIMITS, make_request, make_rig
from tests.decoding.letters import END
from tests.decoding.plainly import plain_tokens, raw_logits
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

GATE_SEED = 20250117  # of the mixes that the gate runs
NUM_MIXES = 200  # requests are eight times as many
GATE_MIXES = 8
BATCH = 8
WIDE = replace(LIMITS, num_rows=BATCH)

Draw = Callable[[random.Random], dict[str, object]]

# What a field may be, strong enough to change the answer of a small random model.
FIELDS: dict[str, Draw] = {
    "temperature": lambda rng: {"temperature": rng.choice([0.3, 1.0, 2.0])},
    "top_k": lambda rng: {"top_k": rng.randint(1, 20)},
    "top_p": lambda rng: {"top_p": rng.uniform(0.2, 0.95)},
    "min_p": lambda rng: {"min_p": rng.uniform(0.01, 0.9)},
    "presence": lambda rng: {"presence_penalty": rng.uniform(-2, 2)},
    "frequency": lambda rng: {"frequency_penalty": rng.uniform(-2, 2)},
    "repetition": lambda rng: {"repetition_penalty": rng.choice([0.7, 1.3, 3.0])},
    "bias": lambda rng: {
        "logit_bias": tuple(
            (token_id, rng.choice([-100.0, -2.0, 1.5, 4.0]))
            for token_id in rng.sample(range(64), 9)
        )
    },
    "min_tokens": lambda rng: {"min_tokens": rng.randint(1, 9)},
    "ignore_eos": lambda _: {"ignore_eos": True},
    "stop_ids": lambda rng: {"stop_token_ids": tuple(rng.sample(range(64), 4))},
    "ends": lambda rng: {"end_token_ids": (END, *rng.sample(range(64), 5))},
    "grammar": lambda rng: {"grammar": regex_grammar(rng.choice(["[a-m]+", "(a|[c-z])*q"]))},
    "logprobs": lambda rng: {"logprobs": rng.randint(0, 5)},
}


def draw_mix(rng: random.Random, names: list[str], index: int) -> DecodeRequest:
    """One request that has these fields, and some temperature and end token."""
    sampling: dict[str, object] = {
        "temperature": rng.choice([0.0, 1.0]),
        "seed": rng.getrandbits(64),
        "end_token_ids": (END,),
        "max_tokens": rng.randint(4, 16),
    }
    for name in names:
        sampling |= FIELDS[name](rng)
    prompt = random_prompt(rng.getrandbits(30), rng.choice([1, 2, 9, 20]), 64)
    return make_request(f"r{index}", prompt, **sampling)


def check_equal_to_plain(
    target: TargetModel, requests: list[DecodeRequest], draft_len: int, adapter: int
) -> None:
    rig = make_rig(target, "block", draft_len=draft_len, limits=WIDE)
    if adapter:
        rig.stage("block", adapter, 1.0)
    results = decode_batch(rig.engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert result.token_ids == plain_tokens(target, request), request
    assert rig.engine.stats().counts.proposed > 0
    assert rig.engine.stats().drafter_faults == 0


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("kind", ["tiny-ident", "tiny-mix"])
def test_each_field_gives_the_answers_of_plain_decoding(kind, name):
    rng = random.Random(f"{kind} {name}")
    requests = [draw_mix(rng, [name], index) for index in range(4)]
    check_equal_to_plain(build_target(kind, seed=3, layers=3), requests, rng.randint(2, 8), 0)


def check_mix(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    target = build_target(rng.choice(["tiny-ident", "tiny-mix"]), seed=seed % 7, layers=3)
    requests = [
        draw_mix(rng, rng.sample(sorted(FIELDS), rng.randint(1, 6)), index)
        for index in range(BATCH)
    ]
    check_equal_to_plain(target, requests, 1 + seed % 8, adapter=seed % 3)


@pytest.mark.parametrize("seed", random.Random(GATE_SEED).sample(range(NUM_MIXES), GATE_MIXES))
def test_random_mixes_of_fields_give_the_answers_of_plain_decoding(seed):
    check_mix(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(NUM_MIXES))
def test_1600_requests_of_random_fields_give_the_answers_of_plain_decoding(seed):
    check_mix(seed)


def answer(target: TargetModel, request: DecodeRequest, draft_len: int = 4) -> tuple[int, ...]:
    rig = make_rig(target, "head", draft_len=draft_len)
    return decode_batch(rig.engine, [request])[0].token_ids


@pytest.mark.parametrize("place", [0, 2, 7])
def test_a_biased_away_token_never_appears_however_good_the_draft(place):
    """Case A4: a token of the first position and one of mid block, at acceptance 1."""
    target = build_target("tiny-ident", seed=5)
    for seed in range(6):
        request = make_request("r", random_prompt(seed, 5, 64), max_tokens=16)
        banned = answer(target, request)[place]
        biased = make_request(
            "r", request.prompt_ids, max_tokens=16, logit_bias=((banned, -100.0),)
        )
        assert banned not in answer(target, biased)
        assert answer(target, biased) == plain_tokens(target, biased)


def test_min_p_keeps_out_every_token_below_its_threshold():
    """Case A4, with logprobs: at T = 1 an id stays if p >= min_p times the largest p."""
    target = build_target("tiny-mix", seed=5)
    requests = [
        make_request(
            f"r{seed}", (seed,), temperature=1.0, seed=seed, min_p=0.5, logprobs=1, max_tokens=16
        )
        for seed in range(8)
    ]
    for result in decode_batch(make_rig(target, limits=WIDE).engine, requests):
        for entry in result.logprobs:
            # log .5 = -.693; 1e-9 for the rounding of float64 log-probabilities
            assert entry.logprob >= entry.top[0][1] - 0.6931471805599453 - 1e-9


@pytest.mark.parametrize(
    "field", [{"frequency_penalty": 1.5}, {"presence_penalty": 1.5}, {"repetition_penalty": 1.8}]
)
def test_penalties_are_as_strong_under_a_perfect_draft_as_without(field):
    """Cases A6 and A9: at acceptance 1 all tokens of a block count, and the answer changes."""
    target = build_target("tiny-ident", seed=8)
    request = make_request("r", random_prompt(1, 6, 64), max_tokens=100, **field)
    rig = make_rig(target, "head", draft_len=8)
    (result,) = decode_batch(rig.engine, [request])
    assert result.token_ids == plain_tokens(target, request)
    assert result.counts.acceptance_rate() == 1.0  # the draft sees the same penalties
    plain = make_request("r", request.prompt_ids, max_tokens=100)
    assert result.token_ids != answer(target, plain)


def test_min_tokens_counts_tokens_and_not_rounds():
    """Case A6: an end token that comes early is put off to the same place as without a draft."""
    target = build_target("tiny-ident", seed=8)
    request = make_request("r", random_prompt(1, 6, 64), max_tokens=60)
    free = answer(target, request)
    ends = (free[2], free[30])
    held = make_request("r", request.prompt_ids, max_tokens=60, end_token_ids=ends, min_tokens=20)
    got = answer(target, held, draft_len=8)
    assert got == plain_tokens(target, held)
    assert 20 < len(got) < 60
    assert not set(got[:20]) & set(ends)


def test_a_token_of_the_same_block_is_penalised_once():
    """Case A7: a penalty that one occurrence survives and two would not.

    The bias puts one id far ahead; after n occurrences it has lost n penalties, so it stands
    exactly as often in a row as the arithmetic says.
    """
    target = build_target("tiny-ident", seed=2)
    request = make_request(
        "r", (1, 2), max_tokens=12, logit_bias=((40, 100.0),), frequency_penalty=18.0
    )
    got = answer(target, request, draft_len=8)
    assert got == plain_tokens(target, request)
    # 100 - 18 n stays above logits of a few units for n <= 5: six times in a row, 12 if never
    # counted, three if counted twice.
    assert 5 <= got.count(40) <= 6
    assert set(got[: got.count(40)]) == {40}


def test_logprobs_are_the_targets_raw_ones_of_each_request_in_a_batch():
    """Cases D1 and D3: eight requests with processors, none of which may move a log-probability."""
    target = build_target("tiny-mix", seed=9)
    requests = [
        make_request(
            f"r{index}", random_prompt(index, 3 + index, 64), temperature=index % 2, seed=index,
            logprobs=index % 4, frequency_penalty=0.5, logit_bias=((index, 3.0),), max_tokens=11,
        )
        for index in range(8)
    ]  # fmt: skip
    results = decode_batch(make_rig(target, draft_len=5, limits=WIDE).engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert len(result.logprobs) == len(result.token_ids)
        tokens = [*request.prompt_ids, *result.token_ids]
        expected = raw_logits(target, tokens).log_softmax(-1)[len(request.prompt_ids) - 1 : -1]
        for row, token_id, entry in zip(expected, result.token_ids, result.logprobs, strict=True):
            assert entry.token_id == token_id
            # float64: cached and uncached forwards differ by rounding only
            assert entry.logprob == pytest.approx(float(row[token_id]), abs=1e-9)
            top = row.topk(request.sampling.logprobs)
            assert [one for one, _ in entry.top] == top.indices.tolist()
            assert [value for _, value in entry.top] == pytest.approx(top.values.tolist(), abs=1e-9)
