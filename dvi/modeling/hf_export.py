"""Writes tensors as a plain Hugging Face causal LM that others load without knowing us.

Owns the config of what is written; does not know drafts. The written model is of
the source folder's own architecture, with fewer layers and a head of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging as hf_logging

from dvi.modeling.hf import LAYER_NAMES, read_tokenizer
from dvi.modeling.layer import LayerWeights
from dvi.modeling.target import TargetWeights


def write_causal_lm(source: Path, weights: TargetWeights, folder: Path) -> None:
    """Write ``weights`` to ``folder`` with config, tokenizer and defaults of the model ``source``.

    Layers are 0, 1, ... without a gap. Embedding and head are stored apart where they are two
    tensors, also where the source ties them: a trained draft's head is its own.
    """
    hf_logging.disable_progress_bar()
    is_tied = weights.head is weights.embedding
    config = _config(source, len(weights.layers), {"tie_word_embeddings": is_tied})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=weights.embedding.dtype)
    model.load_state_dict(_named(weights), strict=True, assign=True)
    model.tie_weights()  # where the config says so
    if (source / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(source, local_files_only=True)
    model.save_pretrained(folder)
    read_tokenizer(source).save_pretrained(folder)


def _config(source: Path, num_layers: int, changes: Mapping[str, Any]) -> Any:
    """The source's config for so many layers. Kinds of attention are listed a layer."""
    config = AutoConfig.from_pretrained(source, local_files_only=True)
    settings = config.to_dict()
    settings["num_hidden_layers"] = num_layers
    settings.update(changes)
    if settings.get("layer_types"):
        settings["layer_types"] = settings["layer_types"][:num_layers]
    return type(config).from_dict(settings)


def _named(weights: TargetWeights) -> dict[str, Tensor]:
    """Hugging Face's names -> tensors on the CPU, none of them sharing storage with another."""
    named = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.head,
    }
    for index, layer in weights.layers.items():
        named.update(_named_layer(f"model.layers.{index}.", layer))
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named.items()}


def _named_layer(prefix: str, layer: LayerWeights) -> dict[str, Tensor]:
    tensors = {name: getattr(layer, field) for field, name in LAYER_NAMES.items()}
    return {prefix + name: tensor for name, tensor in tensors.items() if tensor is not None}
