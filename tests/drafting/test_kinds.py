"""The table of kinds: what each needs from the config, and what a third kind costs."""

from __future__ import annotations

import pytest
import torch

from dvi.config import DrafterConfig
from dvi.drafting import DRAFTERS, AdapterRefused, draft_branch, make_drafter
from dvi.drafting.factory import DrafterKind
from dvi.drafting.none import NoDrafter
from dvi.types import Source
from tests.drafting.rows import (
    Row,
    config_for,
    make_adapter,
    make_bench,
    random_prompt,
    random_tensors,
)
from tests.rigs import build_target


def test_none_proposes_nothing_and_takes_no_adapter():
    target = build_target()
    drafter = make_drafter(DrafterConfig(kind="none", exit_layer=99), target, 2, 50)
    bench = make_bench("head", target)
    bench.drafter = drafter
    row = Row(bench, 0, random_prompt(1, 9, 64))
    row.prefill([4])
    (proposal,) = drafter.propose([row.request(4)], bench.cache)
    assert (proposal.ids, proposal.logprobs, proposal.source) == ((), (), Source.TARGET)
    layout = bench.branch.layout
    with pytest.raises(AdapterRefused, match="takes no adapter"):
        drafter.prepare(make_adapter(layout, random_tensors(layout, 1)))
    drafter.load(drafter.prepare(None))
    with pytest.raises(ValueError, match="nothing to train"):
        draft_branch(DrafterConfig(kind="none"), target)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"exit_layer": 3}, "drafter.exit_layer=3.*split at 2"),
        ({"block_layer": 4}, r"drafter.block_layer=4 must lie in 0\.\.3"),
        ({"kind": "blok"}, "drafter=blok is none of auto, block, head, model, memory, none"),
    ],
)
def test_a_config_that_does_not_fit_the_target_is_one_line(changes, message):
    target = build_target()
    config = config_for(**{"kind": "block", "target": target, **changes})
    with pytest.raises(ValueError, match=message) as refused:
        make_drafter(config, target, 1, 50)
    assert "\n" not in str(refused.value)


def test_the_block_copies_layer_k_unless_told_otherwise():
    target = build_target()
    default = draft_branch(config_for("block", target), target)
    last = draft_branch(config_for("block", target, block_layer=3), target)
    assert torch.equal(default.block.q, target.layer_weights(2).q)
    assert torch.equal(last.block.q, target.layer_weights(3).q)
    assert (default.layout.drafter.block_layer, last.layout.drafter.block_layer) == (2, 3)
    assert not default.block.o.any()
    assert not default.block.down.any()
    whole = draft_branch(config_for("block", target, zero_block_output=False), target)
    assert torch.equal(whole.block.down, target.layer_weights(2).down)


def test_a_third_kind_is_one_factory_in_the_table(monkeypatch):
    class Parrot(NoDrafter):
        kind = "parrot"

    monkeypatch.setitem(DRAFTERS, "parrot", DrafterKind(lambda c, t, room: Parrot(), None))
    target = build_target()
    assert make_drafter(config_for("parrot", target), target, 1, 50).kind == "parrot"


def test_ranks_and_scales_are_those_of_the_config():
    target = build_target()
    block = draft_branch(DrafterConfig(), target).layout
    assert [(lora.rank, lora.scale) for lora in block.loras] == [(32, 2.0)] * 5 + [(16, 1.0)]
    head = draft_branch(DrafterConfig(kind="head"), target).layout
    assert [(lora.rank, lora.scale) for lora in head.loras] == [(32, 1.0)]
