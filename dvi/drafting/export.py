"""A version of a draft as a plain model: shallow layers, the block behind them, norm, own head;
or the draft model itself with what it learned.

Owns what becomes of which tensor; does not know file formats. The target's modules keep their
names in the written model, so an adapter on it is renamed from ``draft_...`` to those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.block import merged_block
from dvi.drafting.branch import DraftBranch
from dvi.drafting.layout import NORM
from dvi.drafting.model import merged_layers
from dvi.modeling.target import TargetModel, TargetWeights
from dvi.registry.manifest import Adapter


def config_of_version(config: DrafterConfig, adapter: Adapter) -> DrafterConfig:
    """The drafter that a version is for: its own kind, layers and ranks, whatever is configured."""
    shape = adapter.manifest.drafter
    alphas = adapter.adapter_config.get("alpha_pattern") or {}
    block_alphas = [alpha for module, alpha in alphas.items() if module.startswith("draft_block.")]
    return replace(
        config,
        kind=shape.kind,
        exit_layer=shape.exit_layer or config.exit_layer,  # 0: a draft model, no layers under it
        block_layer=shape.block_layer,
        lora_rank=shape.lora_rank,
        head_lora_rank=shape.head_lora_rank or config.head_lora_rank,
        lora_alpha=block_alphas[0] if block_alphas else config.lora_alpha,
        head_lora_alpha=alphas.get("draft_head", config.head_lora_alpha),
    )


def draft_as_model(
    target: TargetModel, branch: DraftBranch, tensors: Mapping[str, Tensor] | None
) -> TargetWeights:
    """The weights of a model whose logits are the draft's; version 0 where ``tensors`` is None.

    Invariant: the head has every row of the target's vocabulary. Tensors may be shared with the
    target: copy before changing.
    """
    embedding = branch.embedding
    if embedding is None:
        embedding = target.embedding
        layers = {index: target.layer_weights(index) for index in range(target.exit_layer)}
        if branch.block is not None:
            layers[target.exit_layer] = merged_block(branch, tensors)
    else:
        layers = dict(enumerate(merged_layers(branch, tensors)))
    return TargetWeights(
        embedding=embedding,
        layers=layers,
        final_norm=branch.norm if tensors is None else tensors[NORM].to(branch.norm),
        head=_merged_head(branch, tensors),
    )


def module_names(branch: DraftBranch) -> dict[str, str]:
    """Module path under the draft -> its path in the written model, for all that learns."""
    learned = f"model.layers.{branch.layout.drafter.exit_layer}."
    if branch.layers:
        learned = "model."
    names = {"draft_norm": "model.norm", "draft_head": "lm_head"}
    for lora in branch.layout.loras:
        if lora.module.startswith("draft_block."):
            names[lora.module] = learned + lora.module.removeprefix("draft_block.")
    return names


def _merged_head(branch: DraftBranch, tensors: Mapping[str, Tensor] | None) -> Tensor:
    if tensors is None:
        return branch.head
    lora = branch.layout.head
    with torch.no_grad():
        update = tensors[lora.name_b] @ tensors[lora.name_a] * lora.scale
        return (branch.head + update.to(branch.head.device)).to(branch.head.dtype)
