"""Draft and target stay in step over rounds of every kind (invariants 2 and 3)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from dvi.decoding import decode_batch
from dvi.drafting import DraftRequest, Proposal
from dvi.modeling.cache import KvCache
from dvi.types import Source
from tests.decoding.engines import (
    LIMITS,
    Rig,
    ScriptedDrafter,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

# tiny-ident: deep layers add nothing, so a zeroed block and a head draft are right.
# tiny-block: the draft block copies the one deep layer whole.
# Sampled requests keep four ids: of all ids the draft looks at the likely ones only, by design.
PERFECT = [
    ("tiny-ident", "head", {}),
    ("tiny-ident", "block", {}),
    ("tiny-block", "block", {"zero_block_output": False}),
]
# In float64 torch computes all, in float32 with heads of 16 our own kernels where they are built.
NUMBERS = [{}, {"dtype": torch.float32, "heads": 2, "kv_heads": 1}]


class MixedDrafter(ScriptedDrafter):
    """Each request's rounds are neural, memory-like (arbitrary ids) or empty, at random."""

    def __init__(self, inner: object, rng: random.Random) -> None:
        super().__init__(inner, lambda request: ())
        self.rng = rng

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:
        answers = []
        for request in requests:
            turn = self.rng.choice(["neural", "memory", "empty"])
            if turn == "neural":
                answers += self.inner.propose([request], cache)
                continue
            ids = [self.rng.randrange(64) for _ in range(self.rng.randint(1, request.draft_len))]
            if turn == "memory" and self.rng.random() < 0.5:  # right at first, wrong later
                ids[:1] = self.inner.propose([request], cache)[0].ids[:1]
            self.script = lambda _, ids=tuple(ids if turn == "memory" else ()): ids
            answers += super().propose([request], cache)
        return answers


@pytest.mark.parametrize(("kind", "drafter", "changes"), PERFECT)
@pytest.mark.parametrize("draft_len", [1, 4, 8])
@pytest.mark.parametrize("numbers", NUMBERS)
def test_alpha_of_a_perfect_draft_is_exactly_one(kind, drafter, changes, draft_len, numbers):
    target = build_target(kind, seed=4, **numbers)
    rig = make_rig(target, real_drafter(target, drafter, LIMITS, **changes), draft_len=draft_len)
    requests = [
        make_request(
            f"r{n}",
            random_prompt(n, 1 + 11 * n, 64),
            max_tokens=40 - 5 * n,
            temperature=n % 2 * 1.0,
            top_k=4,
            seed=n,
            end_token_ids=(n,),
        )
        for n in range(6)
    ]
    results = decode_batch(rig.engine, requests)
    counts = rig.engine.stats().counts
    assert counts.accepted == counts.judged == counts.proposed > 0
    for request, result in zip(requests, results, strict=True):
        assert result.counts.acceptance_rate() in (1.0, None)
        assert len(result.token_ids) == result.counts.rounds + result.counts.accepted
        whole = reference_tokens(target, request)
        assert result.token_ids == whole[: len(result.token_ids)]


@pytest.mark.parametrize("kind_of_rig", range(3))
@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_perfect_draft_stays_perfect_after_rejects_memory_rounds_and_empty_rounds(
    kind_of_rig, numbers
):
    kind, drafter, changes = PERFECT[kind_of_rig]
    target = build_target(kind, seed=5, **numbers)
    mixed = MixedDrafter(real_drafter(target, drafter, LIMITS, **changes), random.Random(8))
    rig = make_rig(target, mixed, draft_len=5)
    requests = [
        make_request(
            f"r{n}",
            random_prompt(n, 20 * n + 1, 64),
            max_tokens=45,
            temperature=1.0,
            top_k=4,
            seed=n,
        )
        for n in range(4)
    ]
    results = decode_batch(rig.engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert result.token_ids == reference_tokens(target, request)
    by_source = rig.engine.stats().counts.by_source
    neural, memory = by_source[Source.NEURAL], by_source[Source.MEMORY]
    assert neural.judged == neural.accepted > 20
    assert memory.judged > memory.accepted > 0  # rollbacks did happen


def test_a_round_without_proposals_may_come_from_a_drafter_that_has_nothing():
    target = build_target("tiny-rand")
    rig = make_rig(target, ScriptedDrafter(real_drafter(target, "none", LIMITS), lambda _: ()))
    (result,) = decode_batch(rig.engine, [make_request("r", (1, 2, 3))])
    assert result.counts.rounds == len(result.token_ids) == 24
    assert set(result.sources) == {Source.TARGET}
    assert result.counts.acceptance_rate() is None


def verified_logits(rig: Rig, prompts: list[list[int]]) -> list[np.ndarray]:
    requests = [make_request(f"r{n}", prompt, max_tokens=20) for n, prompt in enumerate(prompts)]
    decode_batch(rig.engine, requests)
    rig.traces.sort(key=lambda trace: trace.request_id)
    return [
        np.concatenate(
            [t.top_ids, t.top_logits.view(np.int32), t.logsumexp.view(np.int32)[:, None]], 1
        )
        for t in rig.traces
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_target_logits_are_equal_bits_under_any_adapter_and_whatever_a_draft_step_wrote(dtype):
    target = build_target("tiny-mix", dtype=dtype, seed=9)
    prompts = [random_prompt(n, 5 + 9 * n, 64) for n in range(3)]

    def script(request: DraftRequest) -> tuple[int, ...]:
        """Same widths and ids in every run: some right by luck, most not."""
        return tuple((request.position * 7 + i * 13) % 64 for i in range(request.draft_len))

    seen = []
    for version, scale, kind in [
        (1, 0.0, "block"),
        (2, 1.0, "block"),
        (3, 100.0, "block"),
        (0, 0, "none"),
    ]:
        rig = make_rig(target, ScriptedDrafter(real_drafter(target, kind, LIMITS), script))
        if version:
            rig.stage("block", version, scale)
        seen.append(verified_logits(rig, prompts))
    for others in seen[1:]:
        for first, other in zip(seen[0], others, strict=True):
            assert np.array_equal(first, other)
