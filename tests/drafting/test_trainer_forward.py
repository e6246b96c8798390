"""The differentiable batched forward: padding, causality, parity with decoding, gradients."""

from __future__ import annotations

import pytest
import torch

from dvi.drafting import DraftModule, lora
from dvi.modeling.layer import run_layer
from dvi.modeling.plan import Segment
from tests.drafting.rows import (
    Row,
    make_bench,
    one_shot_logits,
    random_prompt,
    random_tensors,
    shallow_states,
)
from tests.rigs import build_target


def wrapped(bench, seed=0):
    """A module with a random adapter on it."""
    layout = bench.branch.layout
    module = lora.wrap(DraftModule(bench.branch), layout, torch.Generator().manual_seed(0))
    lora.load_into(module, layout, random_tensors(layout, seed))
    return module


def padded_batch(bench, texts):
    """Hidden, positions, lengths; padding holds large garbage, as a careless caller might leave."""
    longest = max(map(len, texts))
    hidden = torch.full((len(texts), longest, bench.target.spec.hidden_size), 50.0).double()
    for i, text in enumerate(texts):
        hidden[i, : len(text)] = shallow_states(bench.target, text)
    positions = torch.arange(longest).expand(len(texts), -1)
    return hidden, positions, torch.tensor([len(text) for text in texts])


@pytest.mark.parametrize("kind", ["block", "head"])
def test_padding_and_neighbours_change_nothing(kind):
    bench = make_bench(kind, build_target("tiny-rand", seed=1))
    module = wrapped(bench)
    texts = [random_prompt(i, length, 64) for i, length in enumerate((9, 17, 4, 12))]
    hidden, positions, lengths = padded_batch(bench, texts)
    # unequal counts a trace, gaps, and one trace that nothing is selected of
    select = torch.tensor([(0, 3), (0, 8), (1, 0), (1, 2), (1, 16), (3, 11)])
    with torch.no_grad():
        logits = lora.draft_logits(module, hidden, positions, lengths, select)
    for row, (trace, index) in zip(logits, select.tolist(), strict=True):
        alone = one_shot_logits(bench, random_tensors(bench.branch.layout, 0), texts[trace])
        # float64: only the order of sums differs
        assert torch.allclose(row, alone[index], atol=1e-10, rtol=0)


def test_a_position_sees_itself_and_what_is_before_it():
    bench = make_bench("block", build_target("tiny-rand", seed=2))
    module = wrapped(bench)
    hidden, positions, lengths = padded_batch(bench, [random_prompt(1, 12, 64)])
    select = torch.tensor([(0, i) for i in range(12)])

    def logits(changed):
        with torch.no_grad():
            return lora.draft_logits(module, changed, positions, lengths, select)

    base = logits(hidden)
    moved = hidden.clone()
    moved[0, 6] += 1
    changed = (logits(moved) - base).abs().amax(-1) > 1e-9
    assert changed.tolist() == [False] * 6 + [True] * 6


@pytest.mark.parametrize(
    "switches", [{}, {"qk_norm": True}, {"qkv_bias": True}, {"heads": 4, "kv_heads": 1}]
)
@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_merged_weights_on_the_decode_path_equal_the_peft_forward(switches, scale):
    target = build_target("tiny-rand", seed=3, **switches)
    bench = make_bench("block", target, zero_block_output=False)
    tensors = random_tensors(bench.branch.layout, 4, scale)
    bench.load(tensors)
    weights = bench.drafter.weights
    text = random_prompt(5, 21, 64)
    plan = target.plan([Segment(0, 0, tuple(text))])
    hidden = target.shallow(plan, bench.cache)
    live = weights.readout.logits(
        target, run_layer(weights.layers[0], hidden, plan, bench.cache, 0)
    )
    expected = one_shot_logits(bench, tensors, text)
    # relative: at scale 100 the two low-rank factors make logits 10^4 times larger; float64 sums
    # of 50 terms through three normed products keep 12 digits
    assert torch.allclose(live, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_logged_log_probabilities_are_recomputed_within_the_bound_in_float32():
    # invariant 4; the bound is that of the gauge: two float32 forwards of 3 layers over
    # 50 positions differ by some 1e-5 in logits of size ten
    target = build_target("tiny-mix", dtype=torch.float32, seed=4)
    bench = make_bench("block", target)
    tensors = random_tensors(bench.branch.layout, 5)
    bench.load(tensors)
    row = Row(bench, 0, random_prompt(6, 20, 64))
    row.prefill([8])
    logged = []
    for _ in range(8):
        (proposal,) = bench.drafter.propose([row.request(4)], bench.cache)
        first = len(row.tokens)
        accepted = row.verify(proposal.ids)
        for step in range(min(accepted + 1, 4)):  # what a trace keeps
            logged.append((first, step, proposal))
    for first, step, proposal in logged:
        text = [*row.tokens[:first], *proposal.ids[:step]]
        logits = one_shot_logits(bench, tensors, text)[-1]
        logprob = float(logits.log_softmax(-1)[proposal.ids[step]])
        assert abs(logprob - proposal.logprobs[step]) < 2e-4


def test_learning_starts_at_the_first_step():
    bench = make_bench("block", build_target("tiny-rand", seed=6))
    layout = bench.branch.layout
    module = lora.wrap(DraftModule(bench.branch), layout, torch.Generator().manual_seed(0))
    hidden, positions, lengths = padded_batch(bench, [random_prompt(1, 12, 64)])
    select = torch.tensor([(0, i) for i in range(12)])
    logits = lora.draft_logits(module, hidden, positions, lengths, select)
    logits.log_softmax(-1)[:, 0].sum().neg().backward()
    learning = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    assert len(learning) == len(layout.shapes())
    # B of the two zeroed outputs and of the head, and the norm, move at once; all else follows
    # when these are no longer zero
    for part in ("o_proj.lora_B", "down_proj.lora_B", "draft_head.lora_B", "draft_norm"):
        (grad,) = [g for name, g in learning.items() if part in name]
        assert float(grad.abs().max()) > 0, part
    assert all(p.grad is None for p in module.parameters() if not p.requires_grad)


@pytest.mark.parametrize("kind", ["block", "head"])
def test_a_few_steps_teach_the_target_s_choices(kind):
    target = build_target("tiny-rand", seed=7)
    bench = make_bench(kind, target, lora_rank=8, head_lora_rank=8, lora_alpha=16.0)
    layout = bench.branch.layout
    row = Row(bench, 0, random_prompt(1, 4, 64))
    row.prefill([8])
    for _ in range(60):
        row.verify([])
    module = lora.wrap(DraftModule(bench.branch), layout, torch.Generator().manual_seed(0))
    params = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(params, lr=1e-2, betas=(0.9, 0.99), weight_decay=0)
    hidden, positions, lengths = padded_batch(bench, [row.tokens[:-1]])
    select = torch.tensor([(0, i) for i in range(3, len(row.tokens) - 1)])
    wanted = torch.tensor(row.tokens[4:])
    losses = []
    for _ in range(60):
        logits = lora.draft_logits(module, hidden, positions, lengths, select)
        loss = torch.nn.functional.cross_entropy(logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 4

    def live_alpha(tensors):
        bench.load(tensors)
        again = Row(bench, 1, random_prompt(1, 4, 64))
        again.prefill([8])
        while len(again.tokens) < 60:
            again.verify(bench.drafter.propose([again.request(4)], bench.cache)[0].ids)
        return again.accepted / again.judged

    assert live_alpha(lora.adapter_tensors(module)) > live_alpha(None) + 0.5


@pytest.mark.parametrize("kind", ["block", "head"])
def test_the_trainer_s_head_equals_peft_s_own_in_value_and_gradient(kind):
    bench = make_bench(kind, build_target("tiny-rand", seed=8))
    module = wrapped(bench)
    hidden, positions, lengths = padded_batch(bench, [random_prompt(1, 12, 64)])
    select = torch.tensor([(0, i) for i in range(12)])
    params = [p for p in module.parameters() if p.requires_grad]

    def value_and_gradients(logits):
        loss = logits.log_softmax(-1)[:, :7].square().sum()
        return [logits.detach(), *torch.autograd.grad(loss, params)]

    ours = value_and_gradients(lora.draft_logits(module, hidden, positions, lengths, select))
    theirs = value_and_gradients(module(hidden, positions, select))
    for one, other in zip(ours, theirs, strict=True):
        # float64: the same products with the scale applied at another place
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-10 * float(other.abs().max()))
