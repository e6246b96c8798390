"""``drafter=model``: a copy of the target agrees with it whatever happened to its row before."""

from __future__ import annotations

import random

import pytest
import torch

from dvi.types import SamplingParams
from tests.drafting.pairs import copy_of, model_bench
from tests.drafting.rows import Row, random_prompt
from tests.rigs import build_target


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_copy_of_the_target_is_always_accepted(dtype, temperature):
    check_copy(1, dtype, temperature)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(2, 32))
def test_a_copy_of_the_target_is_always_accepted_for_thirty_histories(
    seed, temperature, monkeypatch
):
    # A draft scores the ids near its top only; of all ids it draws as the target does.
    monkeypatch.setattr("dvi.sampling.choice._DRAFT_REACH", 100.0)
    check_copy(seed, torch.float64, temperature)


def check_copy(seed: int, dtype: torch.dtype, temperature: float) -> None:
    print(f"seed {seed}")
    # fp32: canonical forwards on both sides have equal bits, so that no near-tie can flip
    target = build_target("tiny-rand", dtype=dtype, seed=seed, deterministic=dtype == torch.float32)
    bench = model_bench(target, copy_of(target))
    rng = random.Random(seed)
    params = SamplingParams(max_tokens=99, temperature=temperature, seed=11)
    row = Row(bench, 1, random_prompt(seed, rng.choice([1, 2, 17, 70]), 64), params)
    row.prefill([rng.randint(1, 40)])
    judged = accepted = 0
    for turn in range(24):
        move = rng.choice(["draft", "draft", "plain", "memory", "thrown away", "cut"])
        if move == "plain":
            row.verify([])
        elif move == "memory":  # right or wrong, and no draft step has seen it
            row.verify(random_prompt(turn, rng.randint(1, 5), 64))
        else:
            wanted = rng.randint(1, 8)
            (proposal,) = bench.drafter.propose([row.request(wanted)], bench.cache)
            assert len(proposal.ids) == wanted
            ids = proposal.ids if move == "draft" else proposal.ids[: wanted // 2]
            if move == "thrown away":
                ids = random_prompt(turn, 3, 64)
            agreed = row.verify(ids)
            if move != "thrown away":
                judged, accepted = judged + len(ids), accepted + agreed
    assert judged > 20
    assert accepted == judged
