"""The draft branch as a differentiable module: what the trainer optimizes.

Owns module names (they are the adapter's tensor names) and the batched forward; does not know
PEFT, which wraps it, nor the ragged forward of decoding, which a parity test compares it with.
Letters: B traces, T padded length, P selected positions, S most selected positions of one trace,
H hidden width, V ids that exist, D head width.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dvi.drafting.branch import DraftBranch
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


class DraftAttention(nn.Module):
    """Causal attention whose keys and values are frozen and whose queries are selected."""

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

    def forward(self, normed: Tensor, positions: Tensor, select: Tensor) -> Tensor:
        """[B, T, H], [B, T], [P, 2] -> [P, H]: what the block adds at the selected positions.

        Padding stands at the right, so the causal mask alone keeps it out.
        """
        trace, index = select.unbind(1)  # [P] each
        with torch.no_grad():
            keys = self._heads(self.k_norm, self.k_proj(normed), positions)  # [B, T, Hkv, D]
            values = split_heads(self.v_proj(normed), self.head_dim)
        queries = self._heads(
            self.q_norm, self.q_proj(normed[trace, index]), positions[trace, index]
        )  # [P, Hq, D]
        counts = torch.bincount(trace, minlength=len(normed))  # [B]
        flat = torch.arange(len(select), device=select.device)
        slot = flat - (counts.cumsum(0) - counts)[trace]  # [P] in [0, S)
        width = int(counts.max())
        padded = queries.new_zeros(len(normed), width, *queries.shape[1:])
        padded = padded.index_put((trace, slot), queries)  # [B, S, Hq, D]
        last_key = index.new_zeros(len(normed), width).index_put((trace, slot), index)
        all_keys = torch.arange(normed.shape[1], device=select.device)
        mask = all_keys <= last_key[:, None, :, None]  # [B, 1, S, T]
        mixed = F.scaled_dot_product_attention(
            padded.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask,
            enable_gqa=True,
        )  # [B, Hq, S, D]
        return cast(Tensor, self.o_proj(mixed.transpose(1, 2)[trace, slot].flatten(1)))

    def _heads(self, norm: nn.Module, projected: Tensor, positions: Tensor) -> Tensor:
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


class DraftBlock(nn.Module):
    """One decoder layer over h_k. Being the last before the head, it needs queries and MLP at the
    selected positions only, and keys and values everywhere."""

    def __init__(self, weights: LayerWeights, spec: ModelSpec, rope: RopeTable) -> None:
        super().__init__()
        self.input_layernorm = FrozenNorm(weights.input_norm, spec.norm_eps)
        self.self_attn = DraftAttention(weights, spec, rope)
        self.post_attention_layernorm = FrozenNorm(weights.post_norm, spec.norm_eps)
        self.mlp = DraftMlp(weights)

    def forward(self, hidden: Tensor, positions: Tensor, select: Tensor) -> Tensor:
        """[B, T, H], [B, T], [P, 2] -> [P, H]."""
        picked = hidden[select[:, 0], select[:, 1]]
        picked = picked + self.self_attn(self.input_layernorm(hidden), positions, select)
        return cast(Tensor, picked + self.mlp(self.post_attention_layernorm(picked)))


class NoBlock(nn.Module):
    """The head kind: h_k itself at the selected positions."""

    def forward(self, hidden: Tensor, positions: Tensor, select: Tensor) -> Tensor:  # noqa: ARG002
        """[B, T, H], [B, T], [P, 2] -> [P, H]."""
        return hidden[select[:, 0], select[:, 1]]


def draft_block(branch: DraftBranch) -> nn.Module:
    """The branch's block over its tensors, or the identity."""
    if branch.block is None:
        return NoBlock()
    rope = RopeTable(branch.spec, branch.head.dtype, branch.head.device)
    return DraftBlock(branch.block, branch.spec, rope)


class DraftModule(nn.Module):
    """Draft block (or none), the draft's own final norm, output head. All frozen until wrapped."""

    def __init__(self, branch: DraftBranch) -> None:
        super().__init__()
        spec = branch.spec
        self.draft_block = draft_block(branch)
        norm = branch.norm.to(branch.layout.dtype, copy=True)
        self.draft_norm = FrozenNorm(norm, spec.norm_eps)
        self.draft_head = frozen_linear(branch.head)
        self.num_token_ids = spec.num_token_ids

    def forward(self, hidden: Tensor, positions: Tensor, select: Tensor) -> Tensor:
        """[B, T, H], [B, T], [P, 2] -> logits [P, V] of the ids that exist, float32 or wider.

        ``select`` holds (trace, index) pairs, traces ascending.
        """
        return self.real_logits(self.draft_head(self.states(hidden, positions, select)))

    def states(self, hidden: Tensor, positions: Tensor, select: Tensor) -> Tensor:
        """[B, T, H], [B, T], [P, 2] -> [P, H]: what the head reads."""
        return cast(Tensor, self.draft_norm(self.draft_block(hidden, positions, select)))

    def real_logits(self, logits: Tensor) -> Tensor:
        """Head outputs [P, head rows] -> [P, V], float32 or wider."""
        real = logits[:, : self.num_token_ids]
        return real.to(torch.promote_types(real.dtype, torch.float32))
