"""Which versions a drafter takes, and what taking one touches."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from dvi.drafting import AdapterRefused, make_drafter
from tests.drafting.rows import (
    Row,
    config_for,
    make_adapter,
    make_bench,
    random_prompt,
    random_tensors,
    target_hash,
)
from tests.rigs import build_target

HEAD_B = "base_model.model.draft_head.lora_B.weight"


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


BROKEN = {
    "misses tensor": lambda t: without(t, HEAD_B),
    "has unknown tensor": lambda t: {**t, "base_model.model.model.layers.0.q.weight": t[HEAD_B]},
    "has shape": lambda t: {**t, HEAD_B: t[HEAD_B].t().contiguous()},
    "has dtype": lambda t: {**t, HEAD_B: t[HEAD_B].half()},
    "not finite": lambda t: {**t, HEAD_B: t[HEAD_B].index_fill(0, torch.tensor([3]), torch.nan)},
}


@pytest.mark.parametrize("reason", BROKEN)
@pytest.mark.parametrize("kind", ["block", "head"])
def test_tensors_that_do_not_fit_are_refused_in_one_line(kind, reason):
    bench = make_bench(kind, build_target(dtype=torch.float32))
    layout = bench.branch.layout
    adapter = make_adapter(layout, BROKEN[reason](random_tensors(layout, 1)))
    with pytest.raises(AdapterRefused, match=reason) as refused:
        bench.drafter.prepare(adapter)
    assert "\n" not in str(refused.value)
    assert bench.drafter.adapter_version == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "head"},
        {"exit_layer": 1},
        {"block_layer": 3},
        {"lora_rank": 4},
        {"head_lora_rank": 9},
    ],
)
def test_a_version_of_another_drafter_is_refused(changes):
    bench = make_bench("block", build_target(dtype=torch.float32))
    layout = bench.branch.layout
    adapter = make_adapter(layout, random_tensors(layout, 1))
    other = replace(adapter.manifest, drafter=replace(adapter.manifest.drafter, **changes))
    with pytest.raises(AdapterRefused, match="is for"):
        bench.drafter.prepare(replace(adapter, manifest=other))


def test_a_version_of_another_base_or_scale_is_refused():
    bench = make_bench("block", build_target(dtype=torch.float32))
    layout = bench.branch.layout
    adapter = make_adapter(layout, random_tensors(layout, 1))
    foreign = replace(adapter.manifest, base_fingerprint="0123")
    with pytest.raises(AdapterRefused, match="trained on base 0123"):
        bench.drafter.prepare(replace(adapter, manifest=foreign))
    alphas = {**layout.alphas(), "draft_head": 99.0}
    with pytest.raises(AdapterRefused, match=r"has alpha 99\.0 on draft_head, expected"):
        bench.drafter.prepare(replace(adapter, adapter_config={"alpha_pattern": alphas}))


def test_the_fingerprint_given_at_the_start_is_the_one_that_is_asked_for():
    target = build_target(dtype=torch.float32)
    layout = make_bench("head", target).branch.layout
    drafter = make_drafter(config_for("head", target), target, 1, 50, base_fingerprint="ab")
    adapter = make_adapter(layout, random_tensors(layout, 1))
    with pytest.raises(AdapterRefused, match="this is ab"):
        drafter.prepare(adapter)
    ours = replace(adapter.manifest, base_fingerprint="ab")
    assert drafter.prepare(replace(adapter, manifest=ours)).adapter_version == 1


@pytest.mark.parametrize("tie_embeddings", [False, True])
@pytest.mark.parametrize("kind", ["block", "head"])
def test_merge_and_swap_touch_no_tensor_of_the_target(kind, tie_embeddings):
    target = build_target(dtype=torch.float32, tie_embeddings=tie_embeddings)
    bench = make_bench(kind, target)
    before = target_hash(target)
    for version in (1, 2):
        bench.load(random_tensors(bench.branch.layout, version), version)
        assert bench.drafter.adapter_version == version
    bench.load(None)
    assert bench.drafter.adapter_version == 0
    assert target_hash(target) == before


def storages(weights):
    """Addresses of every tensor that a block version computes with."""
    (layer,) = weights.layers
    linears = (layer.qkv, layer.o, layer.gate_up, layer.down)
    return {linear.weight.untyped_storage().data_ptr() for linear in linears}


def test_no_version_shares_a_matrix_with_the_target_or_another_version():
    target = build_target(dtype=torch.float32)
    bench = make_bench("block", target, zero_block_output=False)
    layout = bench.branch.layout
    versions = [
        bench.drafter.prepare(make_adapter(layout, random_tensors(layout, v), v)) for v in (1, 2)
    ]
    versions.append(bench.drafter.prepare(None))
    seen = {target.head.untyped_storage().data_ptr()}
    for index in range(target.spec.num_layers):
        layer = target.layer(index)
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            seen.add(linear.weight.untyped_storage().data_ptr())
    for weights in versions:
        assert not storages(weights) & seen
        seen |= storages(weights)


def test_a_swap_changes_the_draft_and_coming_back_restores_it():
    target = build_target("tiny-rand", dtype=torch.float32, seed=2)
    bench = make_bench("block", target)

    def drafted():
        row = Row(bench, 0, random_prompt(1, 15, 64))
        row.prefill([8])
        return bench.drafter.propose([row.request(6)], bench.cache)[0].logprobs

    untrained = drafted()
    tensors = random_tensors(bench.branch.layout, 1)
    bench.load(tensors)
    trained = drafted()
    assert trained != untrained
    bench.load(None)
    assert drafted() == untrained
    bench.load(tensors)
    assert drafted() == trained


def test_preparing_beside_decoding_changes_nothing_until_it_is_loaded():
    target = build_target("tiny-rand", dtype=torch.float32, seed=3)
    bench = make_bench("block", target)
    row = Row(bench, 0, random_prompt(1, 15, 64))
    row.prefill([8])
    request = row.request(5)
    before = bench.drafter.propose([request], bench.cache)
    layout = bench.branch.layout
    made = []
    tensors = random_tensors(layout, 1)
    thread = threading.Thread(
        target=lambda: made.append(bench.drafter.prepare(make_adapter(layout, tensors, 7)))
    )
    thread.start()
    for _ in range(5):
        assert bench.drafter.propose([request], bench.cache) == before
    thread.join()
    tensors[HEAD_B].zero_()  # a version keeps no reference to what it was made from
    bench.drafter.load(made[0])
    after = bench.drafter.propose([request], bench.cache)
    assert after[0].adapter_version == 7
    assert after[0].logprobs != before[0].logprobs
    bench.load(random_tensors(layout, 1), 7)
    assert bench.drafter.propose([request], bench.cache) == after
