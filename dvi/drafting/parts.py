"""Pieces of a layer as modules over frozen tensors, for every draft that a trainer runs.

Owns module names (they are the adapter's tensor names); does not know which positions are wanted.
Letters: P positions, H hidden width, D head width.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dvi.modeling.layer import LayerWeights
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec


class FrozenNorm(nn.Module):
    """RMS norm with a given scale, in float32 or wider."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)  # [width]
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., width] -> [..., width], same dtype."""
        wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
        normed = F.rms_norm(wide, self.weight.shape, self.weight.to(wide.dtype), self.eps)
        return normed.to(hidden.dtype)


def frozen_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """An ``nn.Linear`` over given storage, which nothing here ever writes."""
    out_features, in_features = weight.shape
    linear = nn.Linear(in_features, out_features, bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


class AttentionParts(nn.Module):
    """Projections, their norms and the rotation; how they are mixed is the subclass's."""

    def __init__(self, weights: LayerWeights, spec: ModelSpec, rope: RopeTable) -> None:
        super().__init__()
        self.q_proj = frozen_linear(weights.q, weights.q_bias)
        self.k_proj = frozen_linear(weights.k, weights.k_bias)
        self.v_proj = frozen_linear(weights.v, weights.v_bias)
        self.o_proj = frozen_linear(weights.o, weights.o_bias)
        self.q_norm = optional_norm(weights.q_norm, spec.norm_eps)
        self.k_norm = optional_norm(weights.k_norm, spec.norm_eps)
        self.head_dim = spec.head_dim
        self.rope = rope

    def turned(self, norm: nn.Module, projected: Tensor, positions: Tensor) -> Tensor:
        """[..., heads * D] -> [..., heads, D], normed and rotated."""
        heads = norm(split_heads(projected, self.head_dim))  # [..., heads, D]
        cos, sin = self.rope.rows(positions, int(positions.max()) + 1)  # [..., D]
        turned = heads.roll(self.head_dim // 2, -1)  # the table's sin carries the sign
        return torch.addcmul(heads * cos.unsqueeze(-2), turned, sin.unsqueeze(-2))


def split_heads(projected: Tensor, head_dim: int) -> Tensor:
    """[..., heads * D] -> [..., heads, D]."""
    return projected.view(*projected.shape[:-1], -1, head_dim)


def optional_norm(weight: Tensor | None, eps: float) -> nn.Module:
    """The norm, or the identity where the family has none."""
    return nn.Identity() if weight is None else FrozenNorm(weight, eps)


class DraftMlp(nn.Module):
    """Gated MLP of the block."""

    def __init__(self, weights: LayerWeights) -> None:
        super().__init__()
        self.gate_proj = frozen_linear(weights.gate)
        self.up_proj = frozen_linear(weights.up)
        self.down_proj = frozen_linear(weights.down)

    def forward(self, normed: Tensor) -> Tensor:
        """[P, H] -> [P, H]."""
        gated = F.silu(self.gate_proj(normed)) * self.up_proj(normed)
        return cast(Tensor, self.down_proj(gated))
