"""The split target on rigs: stacks, heads, kinds and what callers may read."""

from __future__ import annotations

import operator

import pytest
import torch

from dvi.modeling.layer import LayerWeights
from dvi.modeling.linear import Quantization
from dvi.modeling.plan import Segment
from dvi.modeling.target import make_target
from tests.modeling.helpers import decode_in_widths, forward, random_ids, whole_cache
from tests.rigs import KINDS, build_target, random_weights

IDS = random_ids(30, 64)


@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_to_feed_a_text_agree_in_float64(kind: str) -> None:
    model = build_target(kind)
    want = forward(model, whole_cache(model), [Segment(0, 0, IDS)])
    for widths in ([1] * 30, [7, 1, 1, 13, 8], [29, 1]):
        got = decode_in_widths(model, whole_cache(model), 2, IDS, widths)
        # float64: sums of some hundred terms of size 1 to 10.
        torch.testing.assert_close(got, want, atol=1e-11, rtol=0)


def test_dtypes_share_their_weights_and_logits_have_float32_or_more() -> None:
    want = forward(build_target(), whole_cache(build_target()), [Segment(0, 0, IDS)])
    assert want.dtype == torch.float64
    for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 1.0)):
        model = build_target(dtype=dtype)
        got = forward(model, whole_cache(model), [Segment(0, 0, IDS)])
        assert got.dtype == torch.float32
        assert (got.double() - want).abs().max() < bound


def test_tiny_ident_adds_nothing_after_the_exit() -> None:
    model = build_target("tiny-ident")
    cache = whole_cache(model)
    plan = model.plan([Segment(0, 0, IDS)])
    hidden = model.shallow(plan, cache)
    assert torch.equal(model.deep(hidden, plan, cache), hidden)


def test_tiny_block_has_one_deep_layer() -> None:
    model = build_target("tiny-block", exit_layer=3)
    assert model.spec.num_layers == model.exit_layer + 1 == 4


def test_tiny_mix_agrees_with_its_exit_at_part_of_the_positions() -> None:
    model = build_target("tiny-mix")
    ids = random_ids(150, 64, seed=9)
    cache = whole_cache(model)
    plan = model.plan([Segment(0, 0, ids)])
    hidden = model.shallow(plan, cache)
    early = model.logits(hidden).argmax(-1)
    late = model.logits(model.deep(hidden, plan, cache)).argmax(-1)
    assert 0.3 < (early == late).double().mean() < 0.9


def test_shallow_writes_shallow_layers_only() -> None:
    model = build_target()
    cache = whole_cache(model)
    model.shallow(model.plan([Segment(1, 4, (1, 2, 3))]), cache)
    written = cache.data.abs().sum(dim=(1, 3, 5)) > 0  # [layers, rows, capacity]
    assert written[:2, 1, 4:7].all()
    assert written.sum() == 2 * 3


def test_logits_are_the_projection_of_the_normed_state() -> None:
    model = build_target(num_token_ids=60)
    hidden = torch.randn(4, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = hidden.pow(2).mean(-1, keepdim=True).add(model.spec.norm_eps).rsqrt()
    normed = hidden * scale * model.final_norm
    want = normed @ model.head.T
    got = model.logits(hidden)
    # float64: sums of 32 terms of size 1, in another order.
    torch.testing.assert_close(got[:, :60], want[:, :60], atol=1e-12, rtol=0)
    assert torch.all(got[:, 60:] == float("-inf"))
    torch.testing.assert_close(model.project(normed), got, atol=1e-12, rtol=0)


def test_layer_weights_are_the_ones_put_in() -> None:
    spec = build_target(qkv_bias=True, qk_norm=True).spec
    weights = random_weights(spec, 4, torch.float64, 2, 1.0)
    model = make_target(weights, spec, 2, deterministic=False)
    for index in range(spec.num_layers):
        for name in LayerWeights.__slots__:
            want = operator.attrgetter(name)(weights.layers[index])
            got = operator.attrgetter(name)(model.layer_weights(index))
            assert got is None if want is None else torch.equal(got, want), name
            assert want is None or not got.requires_grad
    assert model.head is weights.head
    assert model.final_norm is weights.final_norm


def test_forward_leaves_the_weights_alone() -> None:
    model = build_target("tiny-rand", dtype=torch.float32, tie_embeddings=True)
    before = [model.embedding.clone(), model.layer_weights(0).q.clone(), model.final_norm.clone()]
    forward(model, whole_cache(model), [Segment(0, 0, IDS), Segment(1, 0, IDS[:3])])
    after = [model.embedding, model.layer_weights(0).q, model.final_norm]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_bytes_of_a_pass_are_those_of_matrices_and_head() -> None:
    # width 32, 4 heads and 2 key-value heads of 8, inner width 48, 64 ids
    layer = 32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 48
    assert build_target(dtype=torch.float32, layers=3).num_bytes == 4 * (3 * layer + 64 * 32)
    rows = 64 + 32 + 96 + 32  # outputs of a layer's matrices: a float32 scale each
    int8 = build_target(dtype=torch.float32, layers=3, quantization=Quantization.INT8)
    assert int8.num_bytes == 3 * layer + 64 * 32 + 4 * (3 * rows + 64)


def test_exit_layer_outside_the_model_is_refused() -> None:
    for exit_layer in (0, 4, 9):
        with pytest.raises(ValueError, match=r"exit_layer=\d must lie in 1\.\.3"):
            build_target(exit_layer=exit_layer)


def test_positions_beyond_the_first_table_rotate_alike() -> None:
    model = build_target()
    far = build_target()
    far.plan([Segment(0, 5000, (1,))])  # grows the table of one model
    cache = model.new_cache(4, 1, 5100)
    want = forward(model, cache, [Segment(0, 3000, IDS[:4])])
    assert torch.equal(forward(far, far.new_cache(4, 1, 5100), [Segment(0, 3000, IDS[:4])]), want)
