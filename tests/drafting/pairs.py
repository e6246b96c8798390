"""Draft models beside a tiny target: a copy of it, or a smaller one with other padding.

Owns no assertion; does not know engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dvi.drafting import DraftBranch, DraftModule, lora
from dvi.drafting.branch import DrafterRoom
from dvi.drafting.model import ModelDrafter, drafter_of
from dvi.modeling.loading import make_draft_model
from dvi.modeling.spec import plain_inv_freq
from dvi.modeling.target import TargetModel, TargetWeights
from tests.drafting.rows import Bench, config_for
from tests.rigs import random_weights


def copy_of(target: TargetModel) -> TargetModel:
    """The target itself as a draft model."""
    weights = TargetWeights(
        embedding=target.embedding,
        layers={i: target.layer_weights(i) for i in range(target.spec.num_layers)},
        final_norm=target.final_norm,
        head=target.head,
    )
    return make_draft_model(weights, target.spec, target)


def small_model(target: TargetModel, *, seed: int = 7, vocab: int | None = None) -> TargetModel:
    """Two random layers half as wide, with ``vocab`` rows (default: the target's)."""
    spec = replace(
        target.spec,
        num_layers=2,
        hidden_size=16,
        intermediate_size=24,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        rope_inv_freq=plain_inv_freq(8),
        vocab_size=vocab or target.spec.vocab_size,
    )
    return make_draft_model(random_weights(spec, seed, target.dtype, 2, 1.0), spec, target)


def model_drafter(
    target: TargetModel,
    model: TargetModel,
    num_rows: int = 3,
    max_len: int = 200,
    **changes: object,
) -> ModelDrafter:
    """A drafter of small ranks that computes every row of its head."""
    config = config_for("model", target, **{"draft_vocab_size": None, **changes})
    return drafter_of(config, model, target, DrafterRoom(num_rows, max_len, ""))


def model_bench(target: TargetModel, model: TargetModel, **changes: object) -> Bench:
    """The drafter in the bench of this room."""
    drafter = model_drafter(target, model, **changes)
    cache = target.new_cache(target.spec.num_layers, 3, 200)
    return Bench(target, drafter, drafter.branch, cache)


def one_shot(
    branch: DraftBranch, tensors: Mapping[str, Tensor] | None, ids: Sequence[int]
) -> Tensor:
    """The trainer's logits [T, V] of a draft model at every position of a text, through PEFT."""
    module = lora.wrap(DraftModule(branch), branch.layout, torch.Generator().manual_seed(0))
    if tensors is not None:
        lora.load_into(module, branch.layout, tensors)
    count = len(ids)
    select = torch.stack((torch.zeros(count, dtype=torch.long), torch.arange(count)), 1)
    with torch.no_grad():
        return lora.draft_logits(
            module,
            branch.embedding[torch.tensor([ids])],
            torch.arange(count)[None],
            torch.tensor([count]),
            select,
        )
