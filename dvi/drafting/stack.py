"""A whole draft model as differentiable layers: what the trainer optimizes for ``drafter=model``.

Owns the batched forward; module names are those of ``dvi.drafting.model``. Does not know PEFT.
Letters: B traces, T padded length, P selected positions, H hidden width, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from dvi.drafting.parts import AttentionParts, DraftMlp, FrozenNorm, split_heads
from dvi.modeling.layer import LayerWeights
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec


class StackAttention(AttentionParts):
    """Causal attention of every position, keys and values learning too."""

    def forward(self, normed: Tensor, positions: Tensor) -> Tensor:
        """[B, T, H], [B, T] -> [B, T, H]. Padding stands at the right, where nobody looks."""
        queries = self.turned(self.q_norm, self.q_proj(normed), positions)  # [B, T, Hq, D]
        keys = self.turned(self.k_norm, self.k_proj(normed), positions)
        values = split_heads(self.v_proj(normed), self.head_dim)
        mixed = F.scaled_dot_product_attention(
            queries.transpose(1, 2),
            keys.transpose(1, 2).to(queries.dtype),
            values.transpose(1, 2).to(queries.dtype),
            is_causal=True,
            enable_gqa=True,
        )  # [B, Hq, T, D]
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2).flatten(2)))


class StackLayer(nn.Module):
    """One layer at every position."""

    def __init__(self, weights: LayerWeights, spec: ModelSpec, rope: RopeTable) -> None:
        super().__init__()
        self.input_layernorm = FrozenNorm(weights.input_norm, spec.norm_eps)
        self.self_attn = StackAttention(weights, spec, rope)
        self.post_attention_layernorm = FrozenNorm(weights.post_norm, spec.norm_eps)
        self.mlp = DraftMlp(weights)

    def forward(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """[B, T, H], [B, T] -> [B, T, H]."""
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), positions)
        return cast(Tensor, hidden + self.mlp(self.post_attention_layernorm(hidden)))


class DraftStack(nn.Module):
    """All layers, from embedded ids to the states that norm and head read."""

    def __init__(self, layers: Sequence[LayerWeights], spec: ModelSpec, rope: RopeTable) -> None:
        super().__init__()
        self.layers = nn.ModuleList(StackLayer(weights, spec, rope) for weights in layers)

    def forward(self, hidden: Tensor, positions: Tensor, select: Tensor) -> Tensor:
        """[B, T, H], [B, T], [P, 2] -> [P, H]."""
        for layer in self.layers:
            hidden = layer(hidden, positions)
        return hidden[select[:, 0], select[:, 1]]
