"""The frozen ground a draft stands on: tensors taken from the target, none of them written later.

Owns what is copied and what is only read; does not know LoRA's values.
Letters: V head rows, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dvi.drafting.layout import DraftLayout, LoraShape
from dvi.modeling.buckets import Buckets
from dvi.modeling.layer import LayerWeights
from dvi.modeling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class DraftBranch:
    """A draft without its adapter.

    ``head`` is the target's (or the draft model's) own storage and only ever read: its LoRA stays
    low-rank. ``block`` and ``norm`` are copies, because versions are derived from them.
    """

    layout: DraftLayout
    spec: ModelSpec
    block: LayerWeights | None  # None: the draft reads h_k directly, or is a model of its own
    norm: Tensor  # [H]
    head: Tensor  # [V, H]
    vocab_size: int | None = None  # rows that a draft step computes; None: all
    layers: tuple[LayerWeights, ...] = ()  # of a draft model, which starts from ids
    embedding: Tensor | None = None  # [V, H], of a draft model


@dataclass(frozen=True, slots=True)
class DrafterRoom:
    """What a drafter is built for: the engine's rows, and the target its adapters must name."""

    num_rows: int
    max_len: int  # tokens of a row
    base_fingerprint: str
    buckets: Buckets | None = None  # None: every pass is planned by the target


def copy_layer(weights: LayerWeights, *, zero_output: bool) -> LayerWeights:
    """A copy in fresh storage; with ``zero_output`` the layer starts as the identity.

    A block that starts as the identity learns far sooner than a whole copy of a layer (SPEED.md).
    """
    copied = deepcopy(weights)
    if not zero_output:
        return copied
    return replace(
        copied,
        o=torch.zeros_like(copied.o),
        o_bias=None if copied.o_bias is None else torch.zeros_like(copied.o_bias),
        down=torch.zeros_like(copied.down),
    )


def merged_matrix(base: Tensor, lora: LoraShape, tensors: Mapping[str, Tensor]) -> Tensor:
    """base + scale * B A in fresh storage, of the base's dtype."""
    update = tensors[lora.name_b] @ tensors[lora.name_a] * lora.scale
    return (base + update.to(base.device)).to(base.dtype)
