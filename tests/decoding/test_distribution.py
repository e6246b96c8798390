"""Sampled answers follow the target's exact distribution, with a draft beside it (case A2)."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chi2

from dvi.decoding import EngineLimits, decode_batch
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.types import SamplingParams, Verification
from tests.decoding.engines import make_request, make_rig, real_drafter
from tests.rigs import build_target

VOCAB = 8
PROMPT = (5,)
FALSE_ALARM = 1e-6  # chance that a right sampler fails one of these tests; seeds are fixed
LIMITS = EngineLimits(num_rows=16, max_queue=9, max_context_len=32, max_draft_len=4, top_ids=4)


def next_probabilities(
    target: TargetModel, ids: tuple[int, ...], params: SamplingParams
) -> torch.Tensor:
    """Exact [V] after temperature, then top-k, then top-p (vLLM's order), by full sorting."""
    cache = target.new_cache(target.spec.num_layers, 1, len(ids))
    plan = target.plan([Segment(0, 0, ids)])
    logits = target.logits(target.deep(target.shallow(plan, cache), plan, cache)[-1:])[0]
    scaled = logits / params.temperature
    order = scaled.argsort(descending=True)
    probabilities = scaled[order].softmax(-1)
    if params.top_k:
        probabilities[params.top_k :] = 0
        probabilities /= probabilities.sum()
    before = probabilities.cumsum(0) - probabilities
    probabilities[before >= params.top_p] = 0
    exact = torch.zeros(VOCAB, dtype=torch.float64)
    exact[order] = (probabilities / probabilities.sum()).double()
    return exact


CASES = [
    ({"temperature": 1.0}, 1.0),
    ({"temperature": 3.0, "top_p": 0.8, "top_k": 5}, 1.0),
    ({"temperature": 2.0}, 30.0),
]


@pytest.mark.parametrize(("sampling", "scale"), CASES)
def test_pairs_of_sampled_tokens_follow_the_target(sampling, scale):
    check_pairs(sampling, scale, num_samples=1200)


@pytest.mark.parametrize("verification", Verification)
def test_a_head_that_lacks_half_the_ids_leaves_the_law_alone(verification):
    check_pairs({"temperature": 2.0}, 1.0, 1200, draft_vocab_size=4, verification=verification)


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "scale"), CASES)
def test_pairs_of_8000_sampled_tokens_follow_the_target(sampling, scale):
    check_pairs(sampling, scale, num_samples=8000)


def check_pairs(
    sampling: dict[str, float],
    scale: float,
    num_samples: int,
    *,
    draft_vocab_size: int | None = None,
    verification: Verification = Verification.COUPLED,
) -> None:
    """Chi-square of counted against exact pair probabilities."""
    print(f"seeds 0 to {num_samples - 1}")
    target = build_target("tiny-mix", seed=40, vocab=VOCAB, layers=3, hidden=16, intermediate=16)
    drafter = real_drafter(target, "head", LIMITS, draft_vocab_size=draft_vocab_size)
    rig = make_rig(target, drafter, draft_len=2, limits=LIMITS, verification=verification)
    rig.stage("head", 1, scale)
    requests = [
        make_request(f"r{seed}", PROMPT, max_tokens=2, seed=seed, **sampling)
        for seed in range(num_samples)
    ]
    results = decode_batch(rig.engine, requests)
    assert rig.engine.stats().counts.accepted > 0
    params = requests[0].sampling
    first = next_probabilities(target, PROMPT, params)
    statistic, cells = 0.0, 0
    rest_expected, rest_seen = 0.0, 0
    seen = [result.token_ids for result in results]
    for a, b in itertools.product(range(VOCAB), repeat=2):
        second = next_probabilities(target, (*PROMPT, a), params)
        expected = float(first[a] * second[b]) * num_samples
        count = seen.count((a, b))
        if expected == 0:
            assert count == 0
        elif expected < 5:  # too few for the chi-square law: pooled
            rest_expected += expected
            rest_seen += count
        else:
            statistic += (count - expected) ** 2 / expected
            cells += 1
    if rest_expected:
        statistic += (rest_seen - rest_expected) ** 2 / rest_expected
        cells += 1
    assert cells > 5
    assert statistic < chi2.isf(FALSE_ALARM, cells - 1)
