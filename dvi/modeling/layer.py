"""One decoder layer, shared by the target's stacks and the draft's block.

Owns the arithmetic of a layer; does not know which stack it belongs to or who reads its output.
Letters: N flattened positions, H hidden width, D head width, R rows of a span, W its width, G query
heads a key-value head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.linear import Matrix, Packing, make_matrix
from dvi.modeling.norm import RmsNorm
from dvi.modeling.plan import Plan, Span
from dvi.modeling.spec import ModelSpec
from dvi.native.layers import NativeLayer, make_native_layer


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
    """A layer ready to run; ``plain_weights`` gives its tensors back."""

    spec: ModelSpec
    input_norm: RmsNorm
    qkv: Matrix
    qk_norm: Tensor | None  # [num_heads + num_kv_heads, D]
    o: Matrix
    post_norm: RmsNorm
    gate_up: Matrix
    down: Matrix
    native: NativeLayer | None  # all of it in one call, where all its matrices are native

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """In the order of use."""
        return self.qkv, self.o, self.gate_up, self.down


def make_layer(weights: LayerWeights, spec: ModelSpec, packing: Packing) -> Layer:
    """Fuse q, k, v and gate, up; pack or quantize. Floats are new tensors where fused only."""
    qkv = torch.cat((weights.q, weights.k, weights.v))
    matrices = (
        make_matrix(qkv, _join_biases(weights), packing),
        make_matrix(weights.o, weights.o_bias, packing),
        make_matrix(torch.cat((weights.gate, weights.up)), None, packing),
        make_matrix(weights.down, None, packing),
    )
    qk_norm = _join_norms(weights, spec)
    return Layer(
        spec=spec,
        input_norm=RmsNorm(weights.input_norm, spec.norm_eps, packing),
        qkv=matrices[0],
        qk_norm=qk_norm,
        o=matrices[1],
        post_norm=RmsNorm(weights.post_norm, spec.norm_eps, packing),
        gate_up=matrices[2],
        down=matrices[3],
        native=make_native_layer(
            [matrix.native for matrix in matrices],
            (weights.input_norm, weights.post_norm, qk_norm),
            (
                *(spec.hidden_size, spec.num_heads, spec.num_kv_heads),
                *(spec.head_dim, spec.intermediate_size),
            ),
            spec.norm_eps,
        ),
    )


def plain_weights(layer: Layer) -> LayerWeights:
    """The layer's matrices as its products see them: views where they are kept, else new."""
    spec = layer.spec
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    sizes = [queries, keys, keys]
    q, k, v = torch.split(layer.qkv.plain(), sizes)
    gate, up = layer.gate_up.plain().chunk(2)
    biases = (None,) * 3 if layer.qkv.bias is None else torch.split(layer.qkv.bias, sizes)
    norms = layer.qk_norm
    return LayerWeights(
        input_norm=layer.input_norm.weight,
        q=q,
        k=k,
        v=v,
        o=layer.o.plain(),
        post_norm=layer.post_norm.weight,
        gate=gate,
        up=up,
        down=layer.down.plain(),
        q_bias=biases[0],
        k_bias=biases[1],
        v_bias=biases[2],
        o_bias=layer.o.bias,
        q_norm=None if norms is None else norms[0],
        k_norm=None if norms is None else norms[spec.num_heads],
    )


def run_layer(layer: Layer, hidden: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> Tensor:
    """[N, H] -> [N, H]; stores keys and values of the pass in ``cache`` at ``cache_layer``."""
    if layer.native is not None:
        return layer.native.run(hidden, plan.native(cache), cache_layer)
    qkv = _project(layer, hidden, plan)  # [N, qkv_heads, D]
    _store(layer, qkv, plan, cache, cache_layer)
    mixed = _attend(layer, qkv, plan, cache, cache_layer)  # [N, num_heads * D]
    hidden = layer.o(mixed).add_(hidden)
    gate, up = layer.gate_up(layer.post_norm(hidden)).chunk(2, -1)
    return layer.down(F.silu(gate).mul_(up)).add_(hidden)


def write_kv(layer: Layer, hidden: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> None:
    """Store the keys and values that ``run_layer`` would store, bit for bit; no attention.

    The fused projection is used whole: its bits are those of ``run_layer``.
    """
    if layer.native is not None:
        layer.native.write_kv(hidden, plan.native(cache), cache_layer)
        return
    _store(layer, _project(layer, hidden, plan), plan, cache, cache_layer)


def _project(layer: Layer, hidden: Tensor, plan: Plan) -> Tensor:
    """Norm, fused projection, q and k norms, rotation: [N, qkv_heads, D]."""
    spec = layer.spec
    qkv = layer.qkv(layer.input_norm(hidden)).view(-1, spec.qkv_heads, spec.head_dim)
    if layer.qk_norm is not None:
        rotated = qkv[:, : layer.qk_norm.shape[0]]
        rotated.copy_(F.rms_norm(rotated, (spec.head_dim,), None, spec.norm_eps) * layer.qk_norm)
    view = plan.torch_view()
    turned = qkv.roll(spec.head_dim // 2, -1)
    return torch.addcmul(qkv * view.cos, turned, view.sin)


def _store(layer: Layer, qkv: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> None:
    kv = qkv[:, layer.spec.num_heads :].reshape(-1, layer.spec.head_dim)
    cache.layer_slots[cache_layer].index_copy_(0, plan.slots(cache), kv)


def _attend(layer: Layer, qkv: Tensor, plan: Plan, cache: KvCache, cache_layer: int) -> Tensor:
    """[N, num_heads * D]: attention span by span, the rows of a span in one call."""
    keys, values = cache.keys[cache_layer], cache.values[cache_layer]
    parts = [_attend_span(layer.spec, qkv, span, keys, values) for span in plan.torch_view().spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_span(spec: ModelSpec, qkv: Tensor, span: Span, keys: Tensor, values: Tensor) -> Tensor:
    """[R * W, num_heads * D]; the G query heads of a key head become G * W query rows."""
    num_rows, width = span.num_rows, span.width
    sizes = (num_rows, width, spec.num_kv_heads, spec.group_size, spec.head_dim)
    query = qkv[span.first : span.first + num_rows * width, : spec.num_heads].reshape(sizes)
    query = query.permute(0, 2, 3, 1, 4)  # [R, kv_heads, G, W, D]
    query = query.reshape(num_rows, spec.num_kv_heads, -1, spec.head_dim)
    if span.num_padding:
        query = F.pad(query, (0, 0, 0, span.num_padding))
    out = F.scaled_dot_product_attention(
        query, span.of_rows(keys), span.of_rows(values), attn_mask=span.mask
    )
    if span.num_padding:
        out = out[:, :, : -span.num_padding]
    out = out.reshape(num_rows, spec.num_kv_heads, spec.group_size, width, spec.head_dim)
    return out.permute(0, 3, 1, 2, 4).reshape(num_rows * width, -1)


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
