"""Recorded passes (CUDA graphs on a GPU) answer as planned ones, whatever changes beside them."""

from __future__ import annotations

import dataclasses
import logging
import random

import pytest
import torch

from dvi.decoding import decode_batch
from dvi.drafting import DraftRequest
from dvi.drafting.branch import DrafterRoom
from dvi.drafting.model import drafter_of
from dvi.drafting.vocab import ranked_vocab
from dvi.modeling.plan import Segment
from dvi.types import Source, Verification
from tests.decoding.engines import (
    LIMITS,
    make_buckets,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.decoding.test_identity import decode_with_swaps, draw_requests
from tests.decoding.test_rounds import PERFECT, MixedDrafter
from tests.drafting.pairs import copy_of, small_model
from tests.drafting.rows import config_for, make_adapter, random_prompt, random_tensors
from tests.gpu.recorder import CpuCapture
from tests.rigs import build_target


@pytest.mark.parametrize("case", range(12))
def test_answers_are_the_targets_own_with_random_adapters_and_swaps_between_rounds(case):
    rng = random.Random(case)
    target = build_target("tiny-mix", seed=case)
    buckets = make_buckets(target, CpuCapture())
    rig = make_rig(target, buckets=buckets, draft_len=rng.randint(1, 8))
    requests = draw_requests(rng, batch=rng.randint(1, 8), temperature=case % 2)
    answers = decode_with_swaps(rig, requests, rng, adapter=case + 1, scale=rng.choice([0.1, 3.0]))
    assert answers == [reference_tokens(target, request) for request in requests]
    assert buckets.num_recorded > 4
    assert not buckets.is_broken


@pytest.mark.parametrize(("kind", "drafter", "changes"), PERFECT)
def test_a_perfect_draft_stays_perfect_through_rounds_of_every_kind(kind, drafter, changes):
    target = build_target(kind, seed=5)
    buckets = make_buckets(target, CpuCapture())
    inner = real_drafter(target, drafter, LIMITS, buckets, **changes)
    rig = make_rig(target, MixedDrafter(inner, random.Random(8)), draft_len=5, buckets=buckets)
    requests = [
        make_request(f"r{n}", random_prompt(n, 20 * n + 1, 64), max_tokens=45, temperature=1.0)
        for n in range(4)
    ]
    requests = [
        dataclasses.replace(one, sampling=dataclasses.replace(one.sampling, top_k=4, seed=7))
        for one in requests
    ]
    results = decode_batch(rig.engine, requests)
    for request, result in zip(requests, results, strict=True):
        assert result.token_ids == reference_tokens(target, request)
    assert not buckets.is_broken
    by_source = rig.engine.stats().counts.by_source
    assert by_source[Source.NEURAL].judged == by_source[Source.NEURAL].accepted > 20
    assert by_source[Source.MEMORY].judged > by_source[Source.MEMORY].accepted > 0


@pytest.mark.parametrize("kind", ["block", "head"])
@pytest.mark.parametrize("num_rows", [None, 20])  # of the draft's head
def test_an_exchange_records_nothing_anew_and_the_next_proposal_is_the_new_versions(kind, num_rows):
    target = build_target("tiny-rand")
    buckets = make_buckets(target, CpuCapture())
    recorded, planned = (
        real_drafter(target, kind, LIMITS, one, draft_vocab_size=num_rows)
        for one in (buckets, None)
    )
    cache = target.new_cache(target.spec.num_layers, LIMITS.num_rows, LIMITS.row_len)
    params = make_request("r", (1,), temperature=1.0, seed=3).sampling
    asked = [DraftRequest(row, 0, 7 + row, 6, params) for row in range(3)]
    seen = set()
    with torch.inference_mode():
        recorded.propose(asked, cache)
        before = buckets.num_recorded
        for version in (1, 2, 3, 0):
            tensors = random_tensors(recorded.branch.layout, version, 1.0)
            adapter = make_adapter(recorded.branch.layout, tensors, version)
            if num_rows is not None:  # another list of rows with each version
                counts = torch.rand(64, generator=torch.Generator().manual_seed(version))
                vocab = ranked_vocab(counts, num_rows, version)
                adapter = dataclasses.replace(adapter, draft_vocab=vocab.tensors())
            for drafter in (recorded, planned):
                drafter.load(drafter.prepare(adapter if version else None))
            got, want = (one.propose(asked, cache) for one in (recorded, planned))
            assert [one.ids for one in got] == [one.ids for one in want]
            for one, other in zip(got, want, strict=True):
                assert one.adapter_version == version
                assert one.logprobs == pytest.approx(other.logprobs, abs=1e-9)
            seen.add(got[0].ids)
    assert buckets.num_recorded == before
    assert len(seen) > 1  # the versions do differ


def test_a_version_that_is_loaded_leaves_the_base_that_later_ones_are_made_of():
    target = build_target("tiny-rand")
    drafter = real_drafter(target, "block", LIMITS, make_buckets(target, CpuCapture()))
    layout = drafter.branch.layout
    adapter = make_adapter(layout, random_tensors(layout, 1, 1.0), 1)
    weights = drafter.prepare(adapter)
    drafter.load(weights)
    again = drafter.prepare(adapter)
    for one, other in zip(weights.layers[0].matrices, again.layers[0].matrices, strict=True):
        assert torch.equal(one.plain(), other.plain())


@pytest.mark.parametrize("make_model", [copy_of, small_model])
def test_a_draft_model_reads_and_proposes_alike(make_model):
    target = build_target("tiny-mix", seed=2)
    asked = [make_request(f"r{n}", random_prompt(n, 9 + 30 * n, 64)) for n in range(4)]
    counts = []
    for buckets in (make_buckets(target, CpuCapture()), None):
        room = DrafterRoom(LIMITS.num_rows, LIMITS.row_len, "", buckets)
        drafter = drafter_of(config_for("model", target), make_model(target), target, room)
        rig = make_rig(target, drafter, buckets=buckets)
        results = decode_batch(rig.engine, asked)
        assert [one.token_ids for one in results] == [reference_tokens(target, r) for r in asked]
        counts.append(rig.engine.stats().counts)
    assert counts[0] == counts[1]
    assert (counts[0].acceptance_rate() == 1.0) == (make_model is copy_of)


def model_drafter(target, capture):
    buckets = None if capture is None else make_buckets(target, capture)
    room = DrafterRoom(LIMITS.num_rows, LIMITS.row_len, "", buckets)
    return drafter_of(config_for("model", target), small_model(target), target, room)


def test_an_exchange_of_a_draft_model_records_nothing_anew_and_proposes_by_the_new_version():
    target, capture = build_target("tiny-rand"), CpuCapture()
    recorded, planned = (model_drafter(target, one) for one in (capture, None))
    cache = target.new_cache(target.spec.num_layers, LIMITS.num_rows, LIMITS.row_len)
    params = make_request("r", (1,), temperature=1.0, seed=3).sampling
    layout, seen, recordings = recorded.branch.layout, set(), []
    with torch.inference_mode():
        for row, version in enumerate((1, 2, 3)):
            adapter = make_adapter(layout, random_tensors(layout, version, 1.0), version)
            asked = [DraftRequest(row, 0, 7, 6, params)]
            for drafter in (recorded, planned):
                drafter.load(drafter.prepare(adapter))
            (got,), (want,) = (one.propose(asked, cache) for one in (recorded, planned))
            assert (got.ids, got.adapter_version) == (want.ids, version)
            assert got.logprobs == pytest.approx(want.logprobs, abs=1e-9)
            seen.add(got.ids)
            recordings.append(capture.recorded)
    assert recordings[0] == recordings[-1] > 0
    assert len(seen) > 1


@pytest.mark.parametrize("capture", [CpuCapture(), None])
def test_weights_that_are_loaded_again_leave_a_draft_models_text_as_it_is(capture):
    target = build_target("tiny-rand")
    drafter = model_drafter(target, capture)
    layout = drafter.branch.layout
    first, second = (
        drafter.prepare(make_adapter(layout, random_tensors(layout, version, 1.0), version))
        for version in (1, 2)
    )
    cache = target.new_cache(target.spec.num_layers, LIMITS.num_rows, LIMITS.row_len)
    drafter.load(first)
    with torch.inference_mode():
        drafter.propose([DraftRequest(0, 0, 3, 2, make_request("r", (3,)).sampling)], cache)
    drafter.load(first)
    assert not drafter.texts[0].is_mixed
    drafter.load(second)
    assert drafter.texts[0].is_mixed


@pytest.mark.parametrize(("is_resident", "recorded"), [(True, 1), (False, 0)])
def test_what_a_drafter_writes_is_recorded_only_where_its_weights_stay_in_place(
    is_resident, recorded
):
    target = build_target("tiny-rand")
    buckets = make_buckets(target, CpuCapture())
    drafter = real_drafter(target, "block", LIMITS, buckets if is_resident else None)
    cache = target.new_cache(target.spec.num_layers, LIMITS.num_rows, LIMITS.row_len)
    with torch.inference_mode():
        plan = buckets.plan([Segment(0, 0, (1, 2))])
        hidden = target.shallow(plan, cache)
        before = buckets.num_recorded
        drafter.observe(hidden, plan)
    assert buckets.num_recorded - before == recorded


def test_in_rejection_mode_a_seeded_answer_is_that_of_planned_passes():
    target = build_target("tiny-mix", seed=3)
    asked = [make_request(f"r{n}", (1, 2, 3 + n), temperature=0.9, seed=n) for n in range(3)]
    answers = []
    for buckets in (make_buckets(target, CpuCapture()), None):
        rig = make_rig(target, buckets=buckets, verification=Verification.REJECTION)
        answers.append([one.token_ids for one in decode_batch(rig.engine, asked)])
    assert answers[0] == answers[1]


def test_a_pass_writes_its_own_positions_and_the_last_one_of_a_row_alone():
    target = build_target("tiny-rand")
    buckets = make_buckets(target, CpuCapture())
    shape = (target.spec.num_layers, LIMITS.num_rows, LIMITS.row_len)
    caches = [target.new_cache(*shape) for _ in range(2)]
    caches[0].data.normal_()
    caches[1].data.copy_(caches[0].data)
    segments = [Segment(2, 10, (1, 2, 3, 4)), Segment(0, 40, (5,)), Segment(3, 20, (6, 7))]
    with torch.inference_mode():
        states = []
        for plans, cache in zip((buckets, target), caches, strict=True):
            for part in (segments, segments[:1], [*segments, Segment(1, 0, (8, 9))]):
                plan = plans.plan(part)
                states.append(plan.real(target.deep(target.shallow(plan, cache), plan, cache)))
    for one, other in zip(states[:3], states[3:], strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-9)
    one, other = (cache.data[..., :-1, :] for cache in caches)
    assert torch.allclose(one, other, rtol=0, atol=1e-9)


def test_padding_meets_no_text_of_a_row_that_is_full_to_the_last_position():
    limits = dataclasses.replace(LIMITS, max_context_len=512 - LIMITS.max_draft_len - 1)
    assert limits.row_len == 512  # as many as the row holds: there is no spare tile
    target = build_target("tiny-ident", seed=6)
    buckets = make_buckets(target, CpuCapture(), limits)
    rig = make_rig(target, buckets=buckets, limits=limits, draft_len=limits.max_draft_len)
    asked = [
        make_request(f"r{n}", random_prompt(n, limits.max_context_len - 30 + n, 64), max_tokens=99)
        for n in range(3)
    ]
    results = decode_batch(rig.engine, asked)
    for request, result in zip(asked, results, strict=True):
        room = limits.max_context_len - len(request.prompt_ids)
        assert result.token_ids == reference_tokens(target, request)[:room]
        assert len(result.token_ids) == room
    assert rig.engine.stats().counts.acceptance_rate() == 1.0


@pytest.mark.parametrize(
    ("segments", "shape"),
    [
        ([Segment(3, 5, (1,))], (1, 1, 512)),
        ([Segment(3, 5, (1, 2)), Segment(1, 600, (1, 2, 3, 4))], (2, 5, 1024)),
        ([Segment(row, 511, (1,)) for row in range(3)], (4, 1, 512)),
        ([Segment(row, 512, (1,)) for row in range(5)], (6, 1, 1024)),
        ([Segment(0, 1500, (1,) * 9)], (1, 9, 1536)),
    ],
)
def test_a_pass_takes_the_smallest_shape_that_holds_it(segments, shape):
    limits = dataclasses.replace(LIMITS, num_rows=6, max_context_len=1520)
    buckets = make_buckets(build_target("tiny-rand"), CpuCapture(), limits)
    plan = buckets.plan(segments)
    taken = plan.replays.shape
    assert (taken.num_rows, taken.width, taken.num_keys) == shape


def test_a_cache_of_another_shape_is_refused_before_anything_is_written_to_it():
    target = build_target("tiny-rand")
    plan = make_buckets(target, CpuCapture()).plan([Segment(0, 0, (1,))])
    cache = target.new_cache(target.spec.num_layers, LIMITS.num_rows + 1, LIMITS.row_len)
    with torch.inference_mode(), pytest.raises(AssertionError, match="made for caches"):
        target.shallow(plan, cache)
    assert not cache.data.any()


def test_a_pass_that_is_wider_than_a_round_is_planned_as_it_comes():
    buckets = make_buckets(build_target("tiny-rand"), CpuCapture())
    assert buckets.plan([Segment(0, 0, (1,) * (LIMITS.max_draft_len + 2))]).replays is None


@pytest.mark.parametrize("fails_at", [0, 1, 3, 6])
def test_where_a_recording_fails_answers_go_on_without_any(fails_at, caplog):
    target = build_target("tiny-mix", seed=1)
    capture = CpuCapture(fails_at)
    rig = make_rig(target, buckets=make_buckets(target, capture))
    asked = [make_request(f"r{n}", (1, 2 + n)) for n in range(3)]
    with caplog.at_level(logging.ERROR):
        results = decode_batch(rig.engine, asked)
    assert [one.token_ids for one in results] == [reference_tokens(target, one) for one in asked]
    assert capture.recorded == fails_at
    assert [one.message for one in caplog.records] == [
        "a pass could not be recorded; passes run without CUDA graphs from now on"
    ]
    assert rig.engine.stats().counts.by_source[Source.NEURAL].judged > 0
