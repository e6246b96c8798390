"""The list of a trimmed head: how it is chosen, stored, refused, and what a draft does with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dvi.drafting import AdapterRefused
from dvi.drafting.vocab import DraftVocab, ranked_vocab, vocab_of
from dvi.registry import ManifestFields, Registry
from tests.drafting.rows import (
    Row,
    make_adapter,
    make_bench,
    one_shot_logits,
    random_prompt,
    random_tensors,
    target_hash,
)
from tests.rigs import build_target

SPEC = build_target().spec  # 64 ids


def list_of(ranked: list[int], version: int = 1) -> DraftVocab:
    ids = torch.tensor(ranked)
    return DraftVocab(ids, ids.sort().values, version)


def test_the_most_frequent_ids_are_chosen_and_the_lower_id_on_a_tie():
    counts = torch.tensor([0.0, 2.0, 5.0, 0.0, 2.0, 0.0])
    vocab = ranked_vocab(counts, 4, version=3)
    assert vocab.ranked.tolist() == [2, 1, 4, 0]
    assert vocab.ids.tolist() == [0, 1, 2, 4]
    assert vocab.version == 3


def test_a_stored_list_is_cut_by_rank_and_filled_with_the_lowest_ids():
    stored = list_of([50, 7, 31], version=9).tensors()
    assert vocab_of(stored, 2, SPEC).ids.tolist() == [7, 50]
    filled = vocab_of(stored, 6, SPEC)
    assert filled.ids.tolist() == [0, 1, 2, 7, 31, 50]
    assert filled.version == 9
    assert vocab_of(None, 3, SPEC).ids.tolist() == [0, 1, 2]
    assert vocab_of(stored, None, SPEC) is None


@pytest.mark.parametrize(
    "stored",
    [
        {"ranked": torch.tensor([1, 1]), "version": torch.tensor([1])},
        {"ranked": torch.tensor([1, 64]), "version": torch.tensor([1])},
        {"ranked": torch.tensor([-1, 3]), "version": torch.tensor([1])},
        {"ranked": torch.tensor([1.0, 3.0]), "version": torch.tensor([1])},
        {"ranked": torch.tensor([[1, 3]]), "version": torch.tensor([1])},
        {"ranked": torch.tensor([1, 3])},
        {},
    ],
)
def test_a_list_that_does_not_fit_is_refused_in_one_line(stored):
    bench = make_bench("block", build_target(), draft_vocab_size=8)
    adapter = make_adapter(bench.branch.layout, random_tensors(bench.branch.layout, 1))
    with pytest.raises(AdapterRefused, match=r"draft_vocab\.safetensors") as refused:
        bench.drafter.prepare(replace(adapter, draft_vocab=stored))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["block", "head"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_trimmed_draft_is_the_whole_one_on_its_list_and_nothing_elsewhere(kind, dtype):
    target = build_target("tiny-mix", dtype=dtype, seed=4)
    before = target_hash(target)
    bench = make_bench(kind, target, draft_vocab_size=20)
    vocab = list_of(torch.randperm(64, generator=torch.Generator().manual_seed(2))[:20].tolist())
    tensors = random_tensors(bench.branch.layout, 5)
    adapter = make_adapter(bench.branch.layout, tensors)
    bench.drafter.load(bench.drafter.prepare(replace(adapter, draft_vocab=vocab.tensors())))
    row = Row(bench, 0, random_prompt(3, 12, 64))
    row.prefill([5])
    for _ in range(5):
        (proposal,) = bench.drafter.propose([row.request(4)], bench.cache)
        whole = one_shot_logits(bench, tensors, [*row.tokens, *proposal.ids[:-1]])[-4:]
        listed = whole[:, vocab.ids]
        assert list(proposal.ids) == vocab.ids[listed.argmax(-1)].tolist()
        logprobs = listed.double().log_softmax(-1).amax(-1).tolist()
        # float32: two forwards of few layers in another order of sums
        assert proposal.logprobs == pytest.approx(logprobs, abs=1e-4)
        row.verify(proposal.ids)
    assert target_hash(target) == before


def test_every_id_has_a_row_where_the_list_is_as_long_as_the_vocabulary():
    target = build_target("tiny-mix", seed=4)
    for size in (64, 1000, None):
        bench = make_bench("head", target, draft_vocab_size=size)
        assert bench.branch.vocab_size is None
        assert bench.drafter.prepare(None).readout.trimmed is None


def test_rules_that_leave_no_listed_id_end_the_draft():
    class OnlyHighIds:
        def apply(self, row: np.ndarray) -> bool:
            row[:40] = -np.inf
            return True

        def advance(self, token_id: int) -> bool:
            return True

    target = build_target("tiny-mix", seed=4)
    bench = make_bench("block", target, draft_vocab_size=40)
    row = Row(bench, 0, random_prompt(3, 12, 64))
    row.prefill([5])
    request = replace(row.request(4), rules=OnlyHighIds())
    assert bench.drafter.propose([request], bench.cache)[0].ids == ()
    assert len(bench.drafter.propose([row.request(4)], bench.cache)[0].ids) == 4


def test_the_registry_keeps_list_and_adapter_together(tmp_path):
    bench = make_bench("block", build_target(), draft_vocab_size=8)
    layout = bench.branch.layout
    adapter = make_adapter(layout, random_tensors(layout, 1))
    vocab = list_of([9, 3, 60], version=4)

    def write(folder):
        from safetensors.torch import save_file

        save_file(dict(adapter.tensors), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text("{}")
        vocab.save(folder)

    registry = Registry(tmp_path)
    version = registry.publish(write, ManifestFields("", layout.drafter))
    read = registry.read(version)
    assert vocab_of(read.draft_vocab, 3, SPEC).ids.tolist() == [3, 9, 60]
    path = tmp_path / f"v{version:06d}" / "draft_vocab.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(ValueError, match=r"draft_vocab\.safetensors has a wrong hash"):
        registry.read(version)
