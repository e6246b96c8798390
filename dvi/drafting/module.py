"""The draft branch as a differentiable module: what the trainer optimizes.

Owns module names (with parts.py; they are the adapter's tensor names) and the batched forward of
h_k; of a draft model, whose first input are embedded ids, see stack.py. Does not know
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
from dvi.drafting.parts import (
    AttentionParts,
    DraftMlp,
    FrozenNorm,
    frozen_linear,
    split_heads,
)
from dvi.drafting.stack import DraftStack
from dvi.modeling.layer import LayerWeights
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec


class DraftAttention(AttentionParts):
    """Causal attention whose keys and values are frozen and whose queries are selected."""

    def forward(self, normed: Tensor, positions: Tensor, select: Tensor) -> Tensor:
        """[B, T, H], [B, T], [P, 2] -> [P, H]: what the block adds at the selected positions.

        Padding stands at the right, so the causal mask alone keeps it out.
        """
        trace, index = select.unbind(1)  # [P] each
        with torch.no_grad():
            keys = self.turned(self.k_norm, self.k_proj(normed), positions)  # [B, T, Hkv, D]
            values = split_heads(self.v_proj(normed), self.head_dim)
        queries = self.turned(
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
    """What the branch runs before its norm: layers of a model, a block, or nothing."""
    rope = RopeTable(branch.spec, branch.head.dtype, branch.head.device)
    if branch.layers:
        return DraftStack(branch.layers, branch.spec, rope)
    if branch.block is None:
        return NoBlock()
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
