"""Where rounding may show without deterministic mode: at near-ties only, in fp32 below 1e-3.

Greedy answers with and without speculation are compared token by token. They part where two logits
are so near that another width of the same product turns them round; the margin there is measured on
one forward over the whole text.
"""

from __future__ import annotations

import pytest
import torch

from dvi.decoding import decode_batch
from tests.decoding.engines import make_request, make_rig
from tests.decoding.plainly import raw_logits
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

NUM_REQUESTS, NUM_TOKENS = 12, 60
# Logits are about 3 in size, seldom above 12: a bf16 of that size has steps of 2^-4, and sums of a
# few of them part two forwards; fp32 has steps of 2^-20.
BOUNDS = {torch.float32: 1e-3, torch.bfloat16: 0.5}


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_answers_part_from_plain_ones_at_near_ties_only(dtype: torch.dtype) -> None:
    target = build_target("tiny-mix", dtype=dtype, seed=4)
    requests = [
        make_request(f"t{n}", random_prompt(n, 3 + n, 64), max_tokens=NUM_TOKENS)
        for n in range(NUM_REQUESTS)
    ]
    rig = make_rig(target, "block", draft_len=5)
    drafted = decode_batch(rig.engine, requests)
    plain = decode_batch(make_rig(target, "none").engine, requests)
    assert rig.engine.stats().counts.accepted > 0
    for request, one, other in zip(requests, drafted, plain, strict=True):
        place = first_difference(one.token_ids, other.token_ids)
        if place is None:
            continue
        tokens = [*request.prompt_ids, *one.token_ids[:place]]
        logits = raw_logits(target, tokens)[-1].float()
        taken = logits[[one.token_ids[place], other.token_ids[place]]]
        margin = float(logits.max() - taken.min())
        assert margin < BOUNDS[dtype], f"{request.request_id} at {place}"
