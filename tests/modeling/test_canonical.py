"""Deterministic mode: a position's logits and KV are a function of the tokens before it alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dvi.modeling import target
from dvi.modeling.layer import run_layer, write_kv
from dvi.modeling.linear import Packing
from dvi.modeling.plan import Segment
from dvi.modeling.selftest import self_test
from dvi.modeling.target import TargetModel
from tests.modeling.helpers import decode_in_widths, forward, random_ids, whole_cache
from tests.rigs import build_target

NUM_TOKENS = 45  # a multiple of widths 1, 5 and 9
SHAPES = {
    "plain": {},
    "biased-normed": {"qk_norm": True, "qkv_bias": True},
    "odd-vocab": {"vocab": 61, "tie_embeddings": True},
    "wide-groups": {"hidden": 48, "heads": 6, "kv_heads": 1},
}

needs_packing = pytest.mark.skipif(
    build_target(dtype=torch.float32, deterministic=True).packing is not Packing.CANONICAL,
    reason="this processor or torch has no packed product",
)


@pytest.fixture(scope="module", params=sorted(SHAPES))
def model(request: pytest.FixtureRequest) -> TargetModel:
    return build_target(dtype=torch.float32, deterministic=True, seed=3, **SHAPES[request.param])


def alone(model: TargetModel, widths: list[int]) -> tuple[Tensor, Tensor]:
    cache = whole_cache(model)
    ids = random_ids(NUM_TOKENS, model.spec.num_token_ids)
    logits = decode_in_widths(model, cache, 0, ids, widths)
    return logits, cache.data[:, :, 0, :, :NUM_TOKENS]


@needs_packing
@pytest.mark.parametrize(
    "widths", [[1] * 45, [5] * 9, [9] * 5, [33, 12], [2, 40, 3], [11] * 4 + [1]]
)
def test_bits_do_not_depend_on_width(model: TargetModel, widths: list[int]) -> None:
    want_logits, want_kv = alone(model, [NUM_TOKENS])
    logits, kv = alone(model, widths)
    assert torch.equal(logits, want_logits)
    assert torch.equal(kv, want_kv)


@needs_packing
def test_bits_do_not_depend_on_row_or_neighbours(model: TargetModel) -> None:
    want_logits, want_kv = alone(model, [NUM_TOKENS])
    ids = random_ids(NUM_TOKENS, model.spec.num_token_ids)
    other = random_ids(170, model.spec.num_token_ids, seed=5)
    cache = whole_cache(model)
    got = []
    for step in range(NUM_TOKENS // 5):
        beside = Segment(0, step * 13, other[step * 13 : step * 13 + 1 + 2 * step])
        own = Segment(2, step * 5, ids[step * 5 : step * 5 + 5])
        got.append(forward(model, cache, [beside, own])[-5:])
    assert torch.equal(torch.cat(got), want_logits)
    assert torch.equal(cache.data[:, :, 2, :, :NUM_TOKENS], want_kv)


@needs_packing
@pytest.mark.parametrize("width", [1, 5])
def test_bits_do_not_depend_on_rows_that_share_an_attention_call(
    model: TargetModel, width: int
) -> None:
    texts = [random_ids(NUM_TOKENS, model.spec.num_token_ids, seed=row) for row in range(3)]
    cache = whole_cache(model)
    together: list[list[Tensor]] = [[], [], []]
    for first in range(0, NUM_TOKENS, width):
        segments = [Segment(i, first, text[first : first + width]) for i, text in enumerate(texts)]
        assert [span.num_rows for span in model.plan(segments).torch_view().spans] == [3]
        for row, logits in enumerate(forward(model, cache, segments).split(width)):
            together[row].append(logits)
    for text, logits in zip(texts, together, strict=True):
        alone = decode_in_widths(model, whole_cache(model), 1, text, [NUM_TOKENS])
        assert torch.equal(torch.cat(logits), alone)


@needs_packing
def test_what_lies_past_the_length_is_never_read(model: TargetModel) -> None:
    want_logits, _ = alone(model, [NUM_TOKENS])
    cache = whole_cache(model)
    cache.data.normal_()
    ids = random_ids(NUM_TOKENS, model.spec.num_token_ids)
    assert torch.equal(decode_in_widths(model, cache, 0, ids, [9] * 5), want_logits)


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_self_test_passes_in_deterministic_mode(dtype: torch.dtype) -> None:
    report = self_test(build_target(dtype=dtype, deterministic=True))
    assert report.passed, report
    assert report.num_cases == 7


def test_self_test_sees_the_fast_mode_of_torch_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "fits", lambda *args, **kwargs: False)
    # At width 576 a product of one row and of five take kernels that sum in another order.
    model = build_target(dtype=torch.float32, hidden=576, heads=9, kv_heads=3, intermediate=640)
    report = self_test(model)
    assert not report.passed
    assert report.first_difference
    assert report.largest_gap > 0


def test_write_kv_stores_the_bits_of_run_layer() -> None:
    for deterministic in (False, True):
        model = build_target(dtype=torch.float32, deterministic=deterministic, qk_norm=True)
        plan = model.plan([Segment(1, 3, (4, 5, 6, 7)), Segment(0, 0, (9,))])
        hidden = torch.randn(plan.ids.shape[0], 32, generator=torch.Generator().manual_seed(2))
        ran, wrote = whole_cache(model), model.new_cache(1, 3, 200)
        run_layer(model.layer(2), hidden, plan, ran, 2)
        write_kv(model.layer(2), hidden, plan, wrote, 0)
        assert torch.equal(ran.data[2], wrote.data[0])
        assert torch.count_nonzero(wrote.data) > 0


def test_a_canonical_plan_gives_attention_five_queries_and_whole_tiles() -> None:
    model = build_target(dtype=torch.float32, deterministic=True)
    plan = model.plan([Segment(0, 2, (11, 12)), Segment(1, 510, (13,) * 7), Segment(2, 0, (14,))])
    group = model.spec.group_size
    assert [(s.first, s.width, s.num_keys, s.num_padding) for s in plan.torch_view().spans] == [
        (0, 2, 512, max(0, 5 - 2 * group)),
        (2, 7, 1024, 0),
        (9, 1, 512, max(0, 5 - group)),
    ]
    assert max(s.num_padding for s in plan.torch_view().spans) > 0
    assert plan.ids.tolist() == [11, 12] + [13] * 7 + [14]
    assert plan.positions.tolist() == [2, 3, *range(510, 517), 0]
    assert plan.rows.tolist() == [0, 0] + [1] * 7 + [2]


def test_fast_plan_has_no_mask_for_one_token() -> None:
    model = build_target(dtype=torch.float32)
    plan = model.plan([Segment(0, 6, (1,)), Segment(1, 0, (2, 3))])
    assert plan.torch_view().spans[0].mask is None
    assert plan.torch_view().spans[1].mask is not None
    assert [s.num_keys for s in plan.torch_view().spans] == [7, 2]


def test_neighbours_of_equal_width_and_like_length_share_a_call() -> None:
    def shared(segments: list[Segment], deterministic: bool) -> list[tuple[int, int, int]]:
        model = build_target(dtype=torch.float32, deterministic=deterministic)
        return [(s.row, s.num_rows, s.num_keys) for s in model.plan(segments).torch_view().spans]

    one, two, other_width = (1,), (1, 2), (3, 4, 5)
    neighbours = [Segment(0, 510, two), Segment(1, 7, two), Segment(2, 300, two)]
    assert shared(neighbours, True) == [(0, 3, 512)]
    assert shared(neighbours, False) == [(0, 3, 512)]
    gap = [Segment(0, 9, two), Segment(2, 9, two), Segment(1, 9, two)]
    assert [num_rows for _, num_rows, _ in shared(gap, False)] == [1, 1, 1]
    widths = [Segment(0, 9, two), Segment(1, 9, other_width), Segment(2, 9, one)]
    assert [num_rows for _, num_rows, _ in shared(widths, False)] == [1, 1, 1]
    lengths = [Segment(0, 511, two), Segment(1, 300, two), Segment(2, 1030, two)]
    assert shared(lengths, True) == [(0, 1, 1024), (1, 1, 512), (2, 1, 1536)]
    assert shared(lengths, False) == [(0, 2, 513), (2, 1, 1032)]


def test_the_last_position_of_a_row_can_be_decoded() -> None:
    model = build_target(dtype=torch.float32, deterministic=True)
    for max_len in (507, 508, 512):
        cache = model.new_cache(4, 1, max_len)
        assert cache.capacity % 512 == 0
        forward(model, cache, [Segment(0, max_len - 1, (1,))])


def test_one_token_writes_its_own_position_only() -> None:
    model = build_target(dtype=torch.float32, deterministic=True)
    cache = whole_cache(model)
    forward(model, cache, [Segment(1, 0, random_ids(30, 64))])
    before = cache.data.clone()
    forward(model, cache, [Segment(1, 20, (3,))])
    assert torch.equal(cache.data[:, :, 1, :, :20], before[:, :, 1, :, :20])
    assert torch.equal(cache.data[:, :, 1, :, 21:], before[:, :, 1, :, 21:])
    assert torch.equal(cache.data[:, :, ::2], before[:, :, ::2])
