"""Sampled answers follow the target's exact processed distribution, in both verification modes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from scipy.stats import chi2

from dvi.decoding import EngineLimits, decode_batch
from dvi.drafting import DraftRequest
from dvi.modeling.target import TargetModel
from dvi.sampling import ChoicePoint, Purpose
from dvi.sampling.choice import choose_row
from dvi.types import DecodeRequest, SamplingParams, Source, Verification
from tests.decoding.engines import ScriptedDrafter, make_request, make_rig, real_drafter
from tests.decoding.plainly import processed, raw_logits
from tests.rigs import build_target

VOCAB = 6
PROMPT = (5, 2)
LENGTH = 3  # tokens: two proposals and the token after them
FALSE_ALARM = 1e-6  # chance that a right sampler fails one of these tests; seeds are fixed
LEAST_EXPECTED = 5  # cells below are pooled: the chi-square law does not hold there
LIMITS = EngineLimits(num_rows=32, max_queue=9, max_context_len=32, max_draft_len=4, top_ids=4)

CASES = {
    "plain": {"temperature": 1.5},
    "filters": {"temperature": 2.0, "top_k": 5, "top_p": 0.9, "min_p": 0.02},
    "penalties": {
        "temperature": 1.2,
        "frequency_penalty": 1.1,
        "presence_penalty": -0.4,
        "repetition_penalty": 1.5,
        "logit_bias": ((1, 1.5), (4, -2.0)),
    },
}


def next_probabilities(
    target: TargetModel, output: tuple[int, ...], params: SamplingParams
) -> torch.Tensor:
    """Exact [V] of the next token, by full sorting and dense counts."""
    prompt = list(PROMPT)
    raw = raw_logits(target, [*prompt, *output])[-1]
    z = processed(raw, params, prompt, list(output)) / params.temperature
    order = z.argsort(descending=True)
    probabilities = z[order].softmax(-1)
    if params.top_k:
        probabilities[params.top_k :] = 0
        probabilities /= probabilities.sum()
    before = probabilities.cumsum(0) - probabilities
    probabilities[before >= params.top_p] = 0
    probabilities[probabilities < params.min_p * probabilities.max()] = 0
    exact = torch.zeros(VOCAB, dtype=torch.float64)
    exact[order] = (probabilities / probabilities.sum()).double()
    return exact


def exact_law(target: TargetModel, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """Probability of every answer of LENGTH tokens."""
    law = {(): 1.0}
    for _ in range(LENGTH):
        law = {
            (*output, token_id): mass * float(chance)
            for output, mass in law.items()
            for token_id, chance in enumerate(next_probabilities(target, output, params))
        }
    return law


def check_law(seen: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> None:
    """Chi-square of counted against exact answers, rare ones pooled."""
    num = seen.total()
    statistic, cells, rest_expected, rest_seen = 0.0, 0, 0.0, 0
    for output in itertools.product(range(VOCAB), repeat=LENGTH):
        expected = law[output] * num
        if expected == 0:
            assert seen[output] == 0
        elif expected < LEAST_EXPECTED:
            rest_expected += expected
            rest_seen += seen[output]
        else:
            statistic += (seen[output] - expected) ** 2 / expected
            cells += 1
    if rest_expected:
        statistic += (rest_seen - rest_expected) ** 2 / rest_expected
        cells += 1
    assert cells > 5
    assert statistic < chi2.isf(FALSE_ALARM, cells - 1)


def draw_requests(first_seed: int, num: int, fields: dict[str, object]) -> list[DecodeRequest]:
    return [
        make_request(f"r{seed}", PROMPT, max_tokens=LENGTH, seed=seed, **fields)
        for seed in range(first_seed, first_seed + num)
    ]


def check_before_and_after_a_swap(
    mode: Verification, fields: dict[str, object], num_samples: int
) -> None:
    print(f"seeds 0 to {2 * num_samples - 1}")
    target = build_target("tiny-mix", seed=41, vocab=VOCAB, layers=3, hidden=16, intermediate=16)
    rig = make_rig(target, "head", draft_len=2, limits=LIMITS, verification=mode)
    for phase in range(2):
        requests = draw_requests(phase * num_samples, num_samples, fields)
        results = decode_batch(rig.engine, requests)
        check_law(
            Counter(result.token_ids for result in results),
            exact_law(target, requests[0].sampling),
        )
        rig.stage("head", 1, 8.0)
    stats = rig.engine.stats()
    assert stats.adapter_version == 1
    assert 0 < stats.counts.accepted < stats.counts.judged
    assert stats.drafter_faults == 0


@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("name", CASES)
def test_sampled_answers_follow_the_target_before_and_after_a_swap(name, mode):
    check_before_and_after_a_swap(mode, CASES[name], num_samples=300)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(Verification))
@pytest.mark.parametrize("name", CASES)
def test_20000_sampled_answers_follow_the_target_before_and_after_a_swap(name, mode):
    check_before_and_after_a_swap(mode, CASES[name], num_samples=10_000)


@pytest.mark.parametrize("name", CASES)
def test_answers_follow_the_target_when_a_memory_proposes_under_rejection(name):
    target = build_target("tiny-mix", seed=41, vocab=VOCAB, layers=3, hidden=16, intermediate=16)

    def script(request: DraftRequest) -> list[int]:
        return [(request.token + 1) % VOCAB, request.token]

    drafter = ScriptedDrafter(real_drafter(target, "head", LIMITS), script, Source.MEMORY)
    mode = Verification.REJECTION
    rig = make_rig(target, drafter, draft_len=2, limits=LIMITS, verification=mode)
    requests = draw_requests(0, 400, CASES[name])
    results = decode_batch(rig.engine, requests)
    check_law(
        Counter(result.token_ids for result in results), exact_law(target, requests[0].sampling)
    )
    assert rig.engine.stats().counts.accepted > 0


def test_rejection_accepts_one_minus_the_total_variation():
    """The law of its acceptance rate, at the first position of each answer."""
    target = build_target("tiny-mix", seed=41, vocab=VOCAB, layers=3, hidden=16, intermediate=16)
    rates = {}
    for mode in Verification:
        rig = make_rig(target, "head", draft_len=1, limits=LIMITS, verification=mode)
        rig.stage("head", 1, 8.0)
        requests = draw_requests(0, 400, CASES["plain"])
        decode_batch(rig.engine, requests)
        rates[mode] = rig.engine.stats().counts.acceptance_rate()
    # Coupled lies between (1 - TV) / (1 + TV) and 1 - TV, rejection at 1 - TV; five standard
    # deviations of a share of some 600 judged tokens are .1.
    alpha = rates[Verification.REJECTION]
    assert alpha / (2 - alpha) - 0.1 < rates[Verification.COUPLED] < alpha + 0.1
    assert 0 < alpha < 1


def test_greedy_answers_under_rejection_are_those_of_plain_decoding():
    target = build_target("tiny-mix", seed=3)
    requests = [make_request(f"r{n}", (n, n + 1), presence_penalty=0.3) for n in range(8)]
    plain = decode_batch(make_rig(target, "none").engine, requests)
    mode = Verification.REJECTION
    rig = make_rig(target, "block", draft_len=5, verification=mode)
    assert [one.token_ids for one in decode_batch(rig.engine, requests)] == [
        one.token_ids for one in plain
    ]
    assert rig.engine.stats().counts.accepted > 0


@pytest.mark.parametrize("name", CASES)
def test_a_perfect_draft_is_always_accepted_under_rejection(name):
    """q is what the proposal was drawn from, processors and filters included: p / q = 1."""
    target = build_target("tiny-ident", seed=6, vocab=VOCAB)
    mode = Verification.REJECTION
    rig = make_rig(target, "head", draft_len=4, limits=LIMITS, verification=mode)
    requests = [
        make_request(f"r{seed}", PROMPT, max_tokens=12, seed=seed, **CASES[name])
        for seed in range(16)
    ]
    results = decode_batch(rig.engine, requests)
    assert rig.engine.stats().counts.acceptance_rate() == 1.0
    for request, result in zip(requests, results, strict=True):
        point = ChoicePoint(request.sampling, len(PROMPT))
        raw = raw_logits(target, list(PROMPT))[-1]
        row = processed(raw, request.sampling, list(PROMPT), []).numpy()
        assert result.token_ids[0] == choose_row(row, point, Purpose.PROPOSAL)
