"""``drafter=model``: its keys and values follow the text, whoever wrote it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dvi.drafting import AdapterRefused
from dvi.drafting.model import OWED_TOKENS, PASS_TOKENS, ModelDrafter
from dvi.sampling import Purpose
from dvi.types import SamplingParams, Source
from tests.drafting.pairs import copy_of, model_bench, model_drafter, one_shot, small_model
from tests.drafting.rows import (
    GREEDY,
    Row,
    make_adapter,
    random_prompt,
    random_tensors,
    target_hash,
)
from tests.rigs import build_target


def count_passes(drafter: ModelDrafter, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every pass of the draft model from now on."""
    sizes: list[int] = []
    run = drafter._run

    def watched(plan, layers):
        sizes.append(len(plan.ids))
        return run(plan, layers)

    monkeypatch.setattr(drafter, "_run", watched)
    return sizes


def test_proposals_are_those_of_the_trainer_s_forward_under_an_adapter():
    target = build_target("tiny-rand", seed=3)
    bench = model_bench(target, small_model(target))
    tensors = random_tensors(bench.branch.layout, 5, 0.5)
    bench.load(tensors)
    row = Row(bench, 0, random_prompt(3, 21, 64))
    row.prefill([6])
    for turn, length in enumerate((3, 0, 5, 2, 4)):
        (proposal,) = bench.drafter.propose([row.request(length)], bench.cache)
        assert len(proposal.ids) == length
        logits = one_shot(bench.branch, tensors, [*row.tokens, *proposal.ids])
        rows = logits[len(row.tokens) - 1 :]
        assert tuple(rows.argmax(-1)[:length].tolist()) == proposal.ids
        expected = rows.log_softmax(-1)[range(length), list(proposal.ids)]
        # float64 throughout, sums in another order
        assert proposal.logprobs == pytest.approx(expected.tolist(), abs=1e-9)
        row.verify(random_prompt(turn, 3, 64))
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=3)
    drawn = replace(row.request(3), purpose=Purpose.PROPOSAL, params=params)
    (proposal,) = bench.drafter.propose([drawn], bench.cache)
    logits = one_shot(bench.branch, tensors, [*row.tokens, *proposal.ids])[len(row.tokens) - 1 :]
    torch.testing.assert_close(proposal.draft_logits, logits[:3])  # what rejection divides by
    untrained = one_shot(bench.branch, None, row.tokens)
    assert (one_shot(bench.branch, tensors, row.tokens) - untrained).abs().max() > 0.1


def test_keys_and_values_learn_too():
    target = build_target("tiny-rand", seed=3)
    bench = model_bench(target, small_model(target))
    before = bench.drafter.cache.data.clone()
    caches = []
    for version in (1, 2):
        bench.load(random_tensors(bench.branch.layout, version))
        row = Row(bench, 0, random_prompt(3, 60, 64))
        bench.drafter.release(0)
        row.prefill([59])
        caches.append(bench.drafter.cache.data.clone())
    assert not torch.equal(caches[0], caches[1])
    assert not torch.equal(before, caches[0])


@pytest.mark.parametrize("rows", [64, 96, 70])
def test_heads_padded_to_other_widths_propose_ids_that_exist(rows):
    target = build_target("tiny-rand", seed=4, vocab=80, num_token_ids=60)
    bench = model_bench(target, small_model(target, vocab=rows))
    tensors = random_tensors(bench.branch.layout, 1)
    tensors["base_model.model.draft_head.lora_B.weight"][60:] *= 1000
    bench.load(tensors)
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=64, temperature=temperature, seed=1)
        row = Row(bench, 0, random_prompt(4, 6, 60), params)
        row.prefill([8])
        for _ in range(4):
            request = replace(row.request(4), purpose=Purpose.PROPOSAL)
            (proposal,) = bench.drafter.propose([request], bench.cache)
            assert all(token < 60 for token in proposal.ids)
            if temperature:
                assert proposal.draft_logits.shape == (4, 80)
            row.verify(proposal.ids)


def test_a_trimmed_head_proposes_its_rows_only():
    target = build_target("tiny-rand", seed=4)
    drafter = model_drafter(target, small_model(target), draft_vocab_size=10)
    bench = model_bench(target, small_model(target))
    bench.drafter = drafter
    row = Row(bench, 0, random_prompt(4, 6, 64))
    row.prefill([8])
    (proposal,) = drafter.propose([row.request(8)], bench.cache)
    assert len(proposal.ids) == 8
    assert max(proposal.ids) < 10


def test_no_adapter_changes_a_bit_of_the_target_even_where_they_share_tensors():
    target = build_target("tiny-rand", dtype=torch.float32, seed=8)
    bench = model_bench(target, copy_of(target))
    before = target_hash(target)
    for version, scale in [(1, 1.0), (2, 100.0)]:
        bench.load(random_tensors(bench.branch.layout, version, scale), version)
        row = Row(bench, 0, random_prompt(9, 12, 64))
        row.prefill([5])
        row.verify(bench.drafter.propose([row.request(4)], bench.cache)[0].ids)
    bench.load(None)
    assert target_hash(target) == before


def test_rounds_that_nobody_drafts_cost_one_pass_in_many(monkeypatch):
    target = build_target("tiny-rand", seed=5)
    bench = model_bench(target, small_model(target))
    sizes = count_passes(bench.drafter, monkeypatch)
    row = Row(bench, 0, random_prompt(1, 2, 64))
    row.prefill([1])
    for _ in range(2 * OWED_TOKENS):
        row.verify([])
    assert sizes == [OWED_TOKENS, OWED_TOKENS]
    (proposal,) = bench.drafter.propose([row.request(3)], bench.cache)
    assert sizes[2:] == [2, 1, 1]  # one token owed and the last one, then token by token
    row.verify(proposal.ids)
    assert len(sizes) == 5  # what the proposals wrote is not read again


def test_a_prompt_is_read_as_it_comes(monkeypatch):
    target = build_target("tiny-rand", seed=5)
    bench = model_bench(target, small_model(target))
    sizes = count_passes(bench.drafter, monkeypatch)
    row = Row(bench, 0, random_prompt(1, 121, 64))
    row.prefill([40])
    assert sizes == [40, 40, 40]


def test_a_running_request_keeps_its_keys_and_values_through_a_swap(monkeypatch):
    target = build_target("tiny-rand", seed=6)
    bench = model_bench(target, small_model(target))
    row = Row(bench, 0, random_prompt(2, 60, 64))
    row.prefill([59])
    before = bench.drafter.cache.data[:, :, 0, :, :59].clone()
    bench.load(random_tensors(bench.branch.layout, 1))
    sizes = count_passes(bench.drafter, monkeypatch)
    (proposal,) = bench.drafter.propose([row.request(2)], bench.cache)
    assert (len(proposal.ids), proposal.adapter_version) == (2, 1)
    assert sizes == [1, 1]
    assert torch.equal(bench.drafter.cache.data[:, :, 0, :, :59], before)


def test_a_shared_prefix_is_copied_until_a_swap_and_read_again_after_it(monkeypatch):
    target = build_target("tiny-rand", seed=6)
    bench = model_bench(target, small_model(target))
    drafter = bench.drafter
    text = random_prompt(2, 91, 64)
    first = Row(bench, 0, text[:60])
    first.prefill([59])
    sizes = count_passes(drafter, monkeypatch)
    share(bench, first, 1, 50)
    Row(bench, 1, text)._pass(50, text[50:55])
    assert sizes == []  # copied, and five tokens are too few for a pass
    assert torch.equal(drafter.cache.data[:, :, 1, :, :50], drafter.cache.data[:, :, 0, :, :50])
    bench.load(random_tensors(bench.branch.layout, 1))
    share(bench, first, 2, 50)
    Row(bench, 2, text)._pass(50, text[50:90])
    assert sizes == [90]  # the whole text, by the new weights
    fresh = model_bench(target, drafter.model)
    fresh.load(random_tensors(bench.branch.layout, 1))
    Row(fresh, 0, text).prefill([90])
    # float64, one pass of 90 on either side
    torch.testing.assert_close(
        drafter.cache.data[:, :, 2, :, :90], fresh.drafter.cache.data[:, :, 0, :, :90]
    )


def share(bench, source: Row, row: int, end: int) -> None:
    """What the engine does for a prompt that begins as the source's."""
    bench.cache.copy_span(source.row, row, 0, end)
    bench.drafter.share(source.row, row, 0, end)


@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_request_that_goes_on_in_a_freed_row_reads_what_was_written_before_a_swap(
    is_swapped, monkeypatch
):
    target = build_target("tiny-rand", seed=6)
    bench = model_bench(target, small_model(target))
    text = random_prompt(2, 100, 64)
    Row(bench, 0, text[:61]).prefill([60])
    bench.drafter.release(0)
    if is_swapped:
        bench.load(random_tensors(bench.branch.layout, 1))
    sizes = count_passes(bench.drafter, monkeypatch)
    Row(bench, 0, text)._pass(60, text[60:99])  # the engine kept the row's 60 positions
    assert sizes == [99 if is_swapped else 39]


def test_another_text_in_a_freed_row_shares_nothing(monkeypatch):
    target = build_target("tiny-rand", seed=6)
    bench = model_bench(target, small_model(target))
    text = random_prompt(2, 60, 64)
    for _ in range(2):  # the same prompt: only the engine says whose prefix may be used
        sizes = count_passes(bench.drafter, monkeypatch)
        Row(bench, 0, text).prefill([59])
        bench.drafter.release(0)
        assert sizes == [59]


def test_a_row_with_too_much_to_read_goes_on_without_proposals_until_it_has():
    target = build_target("tiny-rand", seed=6)
    max_len = 3 * PASS_TOKENS
    drafter = model_drafter(target, small_model(target), max_len=max_len)
    bench = model_bench(target, drafter.model)
    bench.drafter, bench.cache = drafter, target.new_cache(target.spec.num_layers, 3, max_len)
    first = Row(bench, 0, random_prompt(2, 2 * PASS_TOKENS, 64))
    first.prefill([PASS_TOKENS])
    bench.load(random_tensors(bench.branch.layout, 1))
    share(bench, first, 1, 2 * PASS_TOKENS - 1)
    row = Row(bench, 1, list(first.tokens))
    lengths = []
    for _ in range(4):
        (proposal,) = drafter.propose([row.request(2)], bench.cache)
        lengths.append(len(proposal.ids))
        assert proposal.source is (Source.NEURAL if proposal.ids else Source.TARGET)
        row.verify(proposal.ids)
    assert lengths == [0, 0, 2, 2]  # 512 tokens: two passes of PASS_TOKENS


def test_a_row_that_was_never_shown_is_measured_as_if_all_before_it_was_read(monkeypatch):
    target = build_target("tiny-rand", seed=6)
    bench = model_bench(target, small_model(target))
    sizes = count_passes(bench.drafter, monkeypatch)
    request = Row(bench, 0, random_prompt(1, 150, 64)).request(1)
    for _ in range(2):
        bench.drafter.propose([request], bench.cache)
    assert sizes == [1, 1]


def test_batch_neighbours_do_not_change_proposals():
    target = build_target("tiny-rand", seed=2)
    bench = model_bench(target, small_model(target))
    params = [GREEDY, SamplingParams(max_tokens=9, temperature=1.0, seed=4), GREEDY]
    rows = [Row(bench, i, random_prompt(i, 6 + 25 * i, 64), params[i]) for i in range(3)]
    for row in rows:
        row.prefill([5])
    requests = [row.request(n) for row, n in zip(rows, [2, 4, 0], strict=True)]
    together = bench.drafter.propose(requests, bench.cache)
    alone = [bench.drafter.propose([request], bench.cache)[0] for request in requests]
    assert [p.ids for p in together] == [p.ids for p in alone]
    assert [len(p.ids) for p in together] == [2, 4, 0]


def test_an_adapter_of_another_shape_is_refused_in_one_line():
    target = build_target("tiny-rand", seed=2)
    drafter = model_drafter(target, small_model(target))
    layout = drafter.branch.layout
    other = model_drafter(target, copy_of(target)).branch.layout
    with pytest.raises(AdapterRefused, match=r"on draft_block.layers.2.*14 differ") as refused:
        drafter.prepare(make_adapter(other, random_tensors(other, 1)))
    assert "\n" not in str(refused.value)
    tensors = random_tensors(layout, 1)
    tensors["base_model.model.draft_block.layers.1.self_attn.k_proj.lora_A.weight"][0, 0] = (
        torch.nan
    )
    with pytest.raises(AdapterRefused, match="not finite"):
        drafter.prepare(make_adapter(layout, tensors))
