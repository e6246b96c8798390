"""The live draft against a one-shot forward of the same text, and against the target it serves."""

from __future__ import annotations

import random

import pytest
import torch

from dvi.types import SamplingParams, Source
from tests.drafting.rows import (
    GREEDY,
    Bench,
    Row,
    make_bench,
    one_shot_logits,
    random_prompt,
    random_tensors,
    target_hash,
)
from tests.rigs import build_target

# Both sides compute the same sums in another order; 30 logits of size ten in float64 agree to
# 1e-12, a wrong position, token or version shows from 1e-3 on.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4}


def assert_proposal_is_one_shot(
    bench: Bench, row: Row, tensors: dict[str, torch.Tensor] | None, draft_len: int
) -> tuple[int, ...]:
    """Propose on the row; ids and log-probabilities must be those of the whole text at once."""
    (proposal,) = bench.drafter.propose([row.request(draft_len)], bench.cache)
    assert len(proposal.ids) == len(proposal.logprobs) == draft_len
    text = [*row.tokens, *proposal.ids]
    logits = one_shot_logits(bench, tensors, text[:-1] if proposal.ids else text)
    expected = logits.log_softmax(-1)[len(row.tokens) - 1 :]
    tolerance = TOLERANCE[bench.target.dtype]
    for step, (token, logprob) in enumerate(zip(proposal.ids, proposal.logprobs, strict=True)):
        assert logprob == pytest.approx(float(expected[step, token]), abs=tolerance)
        if row.params.temperature == 0:  # at a near-tie either id is the arg-max
            assert float(expected[step].max() - expected[step, token]) < tolerance
    return proposal.ids


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["block", "head"])
def test_next_draft_logits_equal_a_one_shot_forward_after_any_history(kind, dtype, deterministic):
    target = build_target("tiny-mix", dtype=dtype, seed=3, deterministic=deterministic)
    bench = make_bench(kind, target)
    rng = random.Random(7)
    row = Row(bench, 1, random_prompt(5, 23, 64))
    row.prefill([4, 1, 7])
    tensors = None
    for turn in range(14):
        if turn % 4 == 3:  # a swap in the middle of the request
            tensors = random_tensors(bench.branch.layout, seed=turn)
            bench.load(tensors, version=turn)
        proposed = assert_proposal_is_one_shot(bench, row, tensors, rng.randint(0, 4))
        move = rng.choice(["neural", "memory", "plain"])
        if move == "neural":
            row.verify(proposed)
        elif move == "plain":
            row.verify([])
        else:
            # a memory's proposals: the target's own next token first, then nonsense, so that the
            # round both accepts and rolls back positions that no draft step has seen
            right = Row(bench, 2, list(row.tokens))
            right.prefill([64])
            right.verify([])
            row.verify([right.tokens[-1], *random_prompt(turn, rng.randint(1, 3), 64)])
    assert len(row.tokens) > 23 + 14  # something was accepted, else nothing was shown


def test_a_reused_row_shows_nothing_of_its_former_request():
    target = build_target("tiny-rand", seed=1)
    bench = make_bench("block", target)
    former = Row(bench, 0, random_prompt(1, 40, 64))
    former.prefill([16])
    bench.drafter.release(0)
    row = Row(bench, 0, random_prompt(2, 9, 64))
    row.prefill([16])
    assert_proposal_is_one_shot(bench, row, None, 3)


def test_proposals_do_not_depend_on_batch_neighbours():
    target = build_target("tiny-rand", seed=2)
    bench = make_bench("block", target)
    tensors = random_tensors(bench.branch.layout, seed=1)
    bench.load(tensors)
    params = [GREEDY, SamplingParams(max_tokens=9, temperature=1.0, seed=4), GREEDY]
    rows = [Row(bench, i, random_prompt(i, 6 + 5 * i, 64), params[i]) for i in range(3)]
    for row in rows:
        row.prefill([5])
    lens = [2, 4, 0]
    requests = [row.request(n) for row, n in zip(rows, lens, strict=True)]
    together = bench.drafter.propose(requests, bench.cache)
    alone = [bench.drafter.propose([request], bench.cache)[0] for request in requests]
    assert [p.ids for p in together] == [p.ids for p in alone]
    assert [len(p.ids) for p in together] == lens
    assert [p.source for p in together] == [Source.NEURAL, Source.NEURAL, Source.TARGET]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("rig", "kind", "changes"),
    [
        ("tiny-ident", "block", {}),
        ("tiny-ident", "head", {}),
        ("tiny-block", "block", {"zero_block_output": False}),
    ],
)
def test_a_draft_that_is_the_target_is_always_accepted(rig, kind, changes, dtype, temperature):
    deterministic = dtype == torch.float32  # equal bits on both sides, so no near-tie can flip
    target = build_target(rig, dtype=dtype, seed=5, deterministic=deterministic)
    bench = make_bench(kind, target, **changes)
    params = SamplingParams(max_tokens=64, temperature=temperature, seed=11)
    row = Row(bench, 0, random_prompt(3, 17, 64), params)
    row.prefill([6])
    for draft_len in (4, 0, 1, 8, 4, 0, 3):
        (proposal,) = bench.drafter.propose([row.request(draft_len)], bench.cache)
        assert row.verify(proposal.ids) == draft_len
    assert row.accepted == row.judged == 20


def test_temperature_draws_from_the_draft_at_the_position_being_proposed():
    # tiny-ident at T = 1: draft and target have one distribution, so that only the noise decides;
    # a noise position off by one would reject about half of all proposals.
    target = build_target("tiny-ident", seed=6)
    bench = make_bench("head", target)
    params = SamplingParams(max_tokens=64, temperature=1.0, seed=2)
    row = Row(bench, 0, random_prompt(4, 5, 64), params)
    row.prefill([8])
    start = len(row.tokens)
    for _ in range(10):
        row.verify(bench.drafter.propose([row.request(4)], bench.cache)[0].ids)
    assert len(set(row.tokens[start:])) > 5  # sampled, not stuck
    assert row.accepted == row.judged == 40


@pytest.mark.parametrize("kind", ["block", "head"])
def test_no_adapter_changes_a_bit_of_the_target(kind):
    target = build_target("tiny-rand", dtype=torch.float32, seed=8)
    bench = make_bench(kind, target)
    script = [random_prompt(100 + i, i % 5, 64) for i in range(8)]  # same proposals for all
    before = target_hash(target)

    def run(version: int, scale: float) -> Row:
        bench.load(random_tensors(bench.branch.layout, version, scale) if version else None)
        row = Row(bench, 0, random_prompt(9, 12, 64))
        row.prefill([5])
        for proposed in script:
            bench.drafter.propose([row.request(4)], bench.cache)
            row.verify(proposed)
        return row

    plain = run(0, 0.0)
    keys = bench.cache.data[:, :, 0, :, : len(plain.tokens) - 1].clone()
    for version, scale in [(1, 1.0), (2, 1.0), (3, 100.0)]:
        drafted = run(version, scale)
        assert drafted.tokens == plain.tokens
        for one, other in zip(plain.verify_logits, drafted.verify_logits, strict=True):
            assert torch.equal(one, other)
        assert torch.equal(keys, bench.cache.data[:, :, 0, :, : len(plain.tokens) - 1])
    assert target_hash(target) == before


def test_draft_keys_and_values_are_the_same_under_every_version():
    target = build_target("tiny-rand", dtype=torch.float32, seed=9)
    bench = make_bench("block", target)
    row = Row(bench, 0, random_prompt(9, 30, 64))
    row.prefill([7])
    before = bench.drafter.cache.data.clone()
    for version, scale in [(1, 1.0), (2, 100.0)]:
        bench.load(random_tensors(bench.branch.layout, version, scale))
        row.prefill([7])
        assert torch.equal(bench.drafter.cache.data, before)


def test_ids_that_do_not_exist_are_never_proposed():
    target = build_target("tiny-rand", seed=10, vocab=64, num_token_ids=40)
    bench = make_bench("head", target)
    tensors = random_tensors(bench.branch.layout, seed=1)
    tensors["base_model.model.draft_head.lora_B.weight"][40:] *= 1000
    bench.load(tensors)
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=64, temperature=temperature, seed=1)
        row = Row(bench, 0, random_prompt(4, 6, 40), params)
        row.prefill([8])
        for _ in range(5):
            ids = assert_proposal_is_one_shot(bench, row, tensors, 4)
            assert all(token < 40 for token in ids)
            row.verify(ids)
