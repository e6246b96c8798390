"""One decoder layer, shared by the target's stacks and the draft's block.

Owns the arithmetic of a layer; does not know which stack it belongs to or who reads its output.
Letters: N flattened positions, H hidden width, D head width, W width of a segment, S its keys,
G query heads a key-value head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.linear import Linear, Packing
from dvi.modeling.plan import Plan
from dvi.modeling.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Plain tensors of one layer, [outputs, inputs] each; biases and q, k norms may be absent."""

    input_norm: Tensor  # [H]
    q: Tensor  # [num_heads * D, H]
    k: Tensor  # [num_kv_heads * D, H]
    v: Tensor
    o: Tensor  # [H, num_heads * D]
    post_norm: Tensor  # [H]
    gate: Tensor  # [intermediate, H]
    up: Tensor
    down: Tensor  # [H, intermediate]
    q_bias: Tensor | None = None
    k_bias: Tensor | None = None
    v_bias: Tensor | None = None
    o_bias: Tensor | None = None
    q_norm: Tensor | None = None  # [D]
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer ready to run; ``weights`` are views into the fused tensors."""

    weights: LayerWeights
    spec: ModelSpec
    qkv: Linear
    o: Linear
    gate_up: Linear
    down: Linear
    qk_norm: Tensor | None  # [num_heads + num_kv_heads, D]


def make_layer(weights: LayerWeights, spec: ModelSpec, packing: Packing) -> Layer:
    """Fuse q, k, v and gate, up; pack. Fused tensors are new; the other ones are shared."""
    qkv = torch.cat((weights.q, weights.k, weights.v))
    gate_up = torch.cat((weights.gate, weights.up))
    q, k, v = torch.split(qkv, [len(weights.q), len(weights.k), len(weights.v)])
    gate, up = gate_up.chunk(2)
    return Layer(
        weights=replace(weights, q=q, k=k, v=v, gate=gate, up=up),
        spec=spec,
        qkv=Linear(qkv, _join_biases(weights), packing),
        o=Linear(weights.o, weights.o_bias, packing),
        gate_up=Linear(gate_up, None, packing),
        down=Linear(weights.down, None, packing),
        qk_norm=_join_norms(weights, spec),
    )


def run_layer(layer: Layer, hidden: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> Tensor:
    """[N, H] -> [N, H]; stores keys and values of the pass in ``cache`` at ``cache_layer``."""
    eps = layer.spec.norm_eps
    qkv = _project(layer, hidden, plan)  # [N, qkv_heads, D]
    _store(layer, qkv, plan, cache, cache_layer)
    mixed = _attend(layer, qkv, plan, cache, cache_layer)  # [N, num_heads * D]
    hidden = hidden + layer.o(mixed)
    normed = F.rms_norm(hidden, hidden.shape[-1:], layer.weights.post_norm, eps)
    gate, up = layer.gate_up(normed).chunk(2, -1)
    return hidden + layer.down(F.silu(gate).mul_(up))


def write_kv(layer: Layer, hidden: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> None:
    """Store the keys and values that ``run_layer`` would store, bit for bit; no attention.

    The fused projection is used whole: its bits are those of ``run_layer``.
    """
    _store(layer, _project(layer, hidden, plan), plan, cache, cache_layer)


def _project(layer: Layer, hidden: Tensor, plan: Plan) -> Tensor:
    """Norm, fused projection, q and k norms, rotation: [N, qkv_heads, D]."""
    spec = layer.spec
    normed = F.rms_norm(hidden, hidden.shape[-1:], layer.weights.input_norm, spec.norm_eps)
    qkv = layer.qkv(normed).view(-1, spec.qkv_heads, spec.head_dim)
    if layer.qk_norm is not None:
        rotated = qkv[:, : layer.qk_norm.shape[0]]
        rotated.copy_(F.rms_norm(rotated, (spec.head_dim,), None, spec.norm_eps) * layer.qk_norm)
    turned = qkv.roll(spec.head_dim // 2, -1)
    return torch.addcmul(qkv * plan.cos, turned, plan.sin)


def _store(layer: Layer, qkv: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> None:
    kv = qkv[:, layer.spec.num_heads :].reshape(-1, layer.spec.head_dim)
    cache.layer_slots[cache_layer].index_copy_(0, plan.slots(cache), kv)


def _attend(layer: Layer, qkv: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> Tensor:
    """Attention segment by segment; the G query heads of a key head become G * W query rows."""
    spec = layer.spec
    groups = (spec.num_kv_heads, spec.group_size)
    keys, values = cache.keys[cache_layer], cache.values[cache_layer]
    parts: list[Tensor] = []
    for span in plan.spans:
        query = qkv[span.first : span.first + span.width, : spec.num_heads]
        query = query.reshape(span.width, *groups, -1).permute(1, 2, 0, 3)  # [kv_heads, G, W, D]
        query = query.reshape(1, spec.num_kv_heads, -1, spec.head_dim)
        if span.num_padding:
            query = F.pad(query, (0, 0, 0, span.num_padding))
        out = F.scaled_dot_product_attention(
            query,
            keys[span.row : span.row + 1, :, : span.num_keys],
            values[span.row : span.row + 1, :, : span.num_keys],
            attn_mask=span.mask,
        )
        if span.num_padding:
            out = out[:, :, : -span.num_padding]
        out = out.reshape(*groups, span.width, spec.head_dim).permute(2, 0, 1, 3)
        parts.append(out.reshape(span.width, -1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _join_biases(weights: LayerWeights) -> Tensor | None:
    if weights.q_bias is None or weights.k_bias is None or weights.v_bias is None:
        return None
    return torch.cat((weights.q_bias, weights.k_bias, weights.v_bias))


def _join_norms(weights: LayerWeights, spec: ModelSpec) -> Tensor | None:
    if weights.q_norm is None or weights.k_norm is None:
        return None
    return torch.cat(
        (
            weights.q_norm.expand(spec.num_heads, -1),
            weights.k_norm.expand(spec.num_kv_heads, -1),
        )
    )
