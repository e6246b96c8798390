"""PEFT LoRA on the draft: wrap, reset, save, load, and the trainer's forward.

The only importer of PEFT. Wrapping marks what learns and names it in the published files; decoding
never comes here, it merges from tensors alone (``prepare`` of each drafter).
Letters: B traces, T padded length, P selected positions, H hidden width, V ids that exist.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils.save_and_load import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor

from dvi.drafting.layout import PREFIX, DraftLayout
from dvi.drafting.module import DraftModule

NORM_MODULE = "draft_norm"


def wrap(module: DraftModule, layout: DraftLayout, generator: torch.Generator) -> PeftModel:
    """Put LoRA on the layout's matrices and make the norm trainable, at version 0.

    Only the generator decides the values; the process's own random state is left alone.
    """
    with torch.random.fork_rng(devices=[]):
        peft_model = get_peft_model(module, lora_config(layout))
    reset(peft_model, generator)
    return peft_model


def lora_config(layout: DraftLayout) -> LoraConfig:
    """PEFT's description of the layout.

    Full module paths, matched as a whole, so that PEFT finds none of them in the target and
    refuses to put an adapter on it. One regular expression rather than a set of names: a set is
    written in a different order in each process, and published files are compared bit for bit.
    """
    head = layout.head
    return LoraConfig(
        r=head.rank,
        lora_alpha=head.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules="|".join(re.escape(lora.module) for lora in layout.loras),
        rank_pattern=layout.ranks(),
        alpha_pattern=layout.alphas(),
        modules_to_save=[NORM_MODULE],
    )


def reset(peft_model: PeftModel, generator: torch.Generator) -> None:
    """Back to version 0 in place: A drawn, B zero, the norm as it came from the target.

    A must not be zero too: both factors at zero have no gradient for ever. Its range is the
    uniform bound 1 / sqrt(in_features) that PEFT draws from as well.
    """
    with torch.no_grad():
        for layer in peft_model.modules():
            if isinstance(layer, LoraLayer):
                factor = layer.lora_A["default"].weight
                bound = 1 / math.sqrt(factor.shape[1])
                drawn = torch.empty_like(factor, device="cpu").uniform_(
                    -bound, bound, generator=generator
                )
                factor.copy_(drawn)
                layer.lora_B["default"].weight.zero_()
        norm = peft_model.base_model.model.draft_norm
        norm.modules_to_save["default"].weight.copy_(norm.original_module.weight)


def adapter_tensors(peft_model: PeftModel) -> dict[str, Tensor]:
    """The adapter's tensors under their published names: detached copies, on the CPU."""
    state = get_peft_model_state_dict(peft_model, save_embedding_layers=False)
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}


def save(peft_model: PeftModel, folder: Path) -> None:
    """Write adapter_model.safetensors and adapter_config.json, and nothing else.

    A few MB: never the head or the block that the adapter stands on.
    """
    save_file(
        adapter_tensors(peft_model), folder / "adapter_model.safetensors", metadata={"format": "pt"}
    )
    config = peft_model.peft_config["default"]
    trained_mode, config.inference_mode = config.inference_mode, True
    try:
        config.save_pretrained(str(folder))
    finally:
        config.inference_mode = trained_mode


def save_renamed(
    layout: DraftLayout, tensors: Mapping[str, Tensor], names: Mapping[str, str], folder: Path
) -> None:
    """Write an adapter for the plain model beside it, whose modules are called otherwise.

    ``names`` maps every adapted module of the draft to its path in that model.
    """
    renamed = {}
    for name, tensor in tensors.items():
        module = max((m for m in names if name.startswith(f"{PREFIX}{m}.")), key=len)
        rest = name.removeprefix(f"{PREFIX}{module}")
        renamed[f"{PREFIX}{names[module]}{rest}"] = tensor.detach().cpu().contiguous()
    save_file(renamed, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = LoraConfig(
        r=layout.head.rank,
        lora_alpha=layout.head.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules="|".join(re.escape(names[lora.module]) for lora in layout.loras),
        rank_pattern={names[module]: rank for module, rank in layout.ranks().items()},
        alpha_pattern={names[module]: alpha for module, alpha in layout.alphas().items()},
        modules_to_save=[names[NORM_MODULE]],
        task_type="CAUSAL_LM",
        inference_mode=True,
        base_model_name_or_path="base",
    )
    config.save_pretrained(str(folder))


def load_into(peft_model: PeftModel, layout: DraftLayout, tensors: Mapping[str, Tensor]) -> None:
    """Replace the trainable values; raises AdapterRefused before anything changes."""
    layout.check(tensors)
    result = set_peft_model_state_dict(peft_model, dict(tensors))
    assert not result.unexpected_keys, result.unexpected_keys


def draft_logits(
    peft_model: PeftModel,
    hidden: Tensor,  # [B, T, H], h_k of a right-padded batch
    positions: Tensor,  # [B, T] int64, absolute
    lengths: Tensor,  # [B] int64, tokens before the padding
    select: Tensor,  # [P, 2] int64, (trace, index) pairs, traces ascending
    *,
    rows: Tensor | None = None,  # [R] int64, ids whose logits are wanted; None: all
) -> Tensor:
    """Logits [P, V], or [P, R] of ``rows``, at the selected positions, differentiable.

    Row p predicts the token after the one at its position, as ``propose`` does. V is
    ``spec.num_token_ids``: rows of a padded head that name no token are left out.
    """
    trace, index = select.unbind(1)
    assert bool((index < lengths[trace]).all()), "a selected position is padding"
    assert bool((trace.diff() >= 0).all()), "selected traces must ascend"
    longest = int(lengths.max())
    module: DraftModule = peft_model.base_model.model
    states = module.states(hidden[:, :longest], positions[:, :longest], select)
    return module.real_logits(head_logits(module.draft_head, states, rows))


def head_logits(layer: LoraLayer, states: Tensor, rows: Tensor | None) -> Tensor:
    """[P, H] -> [P, head rows], those of ``layer(states)``, with fewer passes over them.

    PEFT scales the product [P, head rows] and adds it in passes of their own, a fifth of a step at
    49,152 rows; here the scale goes on [P, r] and the product accumulates into the base.
    """
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    low_rank = F.linear(states.to(down.dtype), down) * layer.scaling["default"]  # [P, r]
    if rows is None:
        base = layer.base_layer(states)
    else:
        base, up = F.linear(states, layer.base_layer.weight[rows]), up[rows]
    return torch.addmm(base.to(up.dtype), low_rank, up.t())
