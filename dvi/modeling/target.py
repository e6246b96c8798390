"""The split target: shallow stack [0, k), deep stack [k, L), final norm and head.

Owns the frozen weights and the only forward there is: plain decoding, drafting, verifying and the
trainer's h_k all run it. Does not know requests, lengths or drafts.
Letters: N flattened positions, n chosen rows, H hidden width, V head rows, k exit layer, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.cache import KvCache, new_kv_cache
from dvi.modeling.layer import Layer, LayerWeights, make_layer, plain_weights, run_layer
from dvi.modeling.linear import Kernels, Packing, Quantization, choose_kernels, make_matrix
from dvi.modeling.plan import Plan, Segment, make_plan
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec
from dvi.native.library import fits


@dataclass(frozen=True, slots=True)
class TargetWeights:
    """Plain tensors of a whole model, or of the part that a trainer needs."""

    embedding: Tensor  # [V, H]
    layers: Mapping[int, LayerWeights]
    final_norm: Tensor  # [H]
    head: Tensor  # [V, H]; the embedding itself when tied


class TargetModel:
    """A frozen decoder. Nothing in it requires grad and nothing changes after construction.

    Forward calls come from one thread at a time; callers choose no_grad or inference_mode.
    """

    def __init__(
        self, weights: TargetWeights, spec: ModelSpec, exit_layer: int, kernels: Kernels
    ) -> None:
        self.spec = spec
        self.exit_layer = exit_layer  # k
        self.deterministic = kernels.deterministic
        self._canonical = kernels.needs_canonical_plans
        self.is_quantized = kernels.target is Packing.INT8
        self.packing = kernels.others  # for matrices that are no part of the target
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.final_norm = weights.final_norm  # [H]
        self._layers = {i: make_layer(w, spec, kernels.target) for i, w in weights.layers.items()}
        self._head = make_matrix(weights.head, None, kernels.target)
        # What the head's product sees, so that a tied embedding and a draft see it too.
        self.head = self._head.plain()  # [V, H]
        is_tied = weights.embedding is weights.head
        self.embedding = self.head if is_tied else weights.embedding  # [V, H]
        self._rope = RopeTable(spec, self.dtype, self.device)

    def new_cache(self, num_layers: int, num_rows: int, max_len: int) -> KvCache:
        """A zero cache of ``num_rows`` rows with room for ``max_len`` tokens each."""
        shape = (num_layers, num_rows, self.spec.num_kv_heads, self.spec.head_dim)
        return new_kv_cache(shape, max_len, self.dtype, self.device)

    def plan(self, segments: Sequence[Segment]) -> Plan:
        """Index tensors of one pass; reusable by every stack, block and cache of that pass."""
        return make_plan(segments, self.spec, self._rope, canonical=self._canonical)

    def rope_tables(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin [P, D] of ``num_positions`` positions or more."""
        self._rope.reserve(num_positions)
        return self._rope.cos, self._rope.sin

    def shallow(self, plan: Plan, cache: KvCache) -> Tensor:
        """h_k [N, H] after layers [0, k); writes their keys and values."""

        def run() -> Tensor:
            hidden = F.embedding(plan.ids, self.embedding)
            return self._run(range(self.exit_layer), hidden, plan, cache)

        return plan.run(("shallow", cache.place), run)

    def deep(self, hidden: Tensor, plan: Plan, cache: KvCache) -> Tensor:
        """[N, H] after layers [k, L), before the final norm; writes their keys and values."""

        def run(hidden: Tensor) -> Tensor:
            return self._run(range(self.exit_layer, self.spec.num_layers), hidden, plan, cache)

        return plan.run(("deep", cache.place), run, hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """[n, H] -> [n, V] float32 (float64 in float64 models): final norm and head."""
        return self.project(
            F.rms_norm(hidden, hidden.shape[-1:], self.final_norm, self.spec.norm_eps)
        )

    def project(self, normed: Tensor) -> Tensor:
        """The head alone: [n, H] -> [n, V]; ids that do not exist get -inf."""
        logits = self._head(normed)
        if self.dtype != torch.float64:
            logits = logits.float()
        if self.spec.num_token_ids < self.spec.vocab_size:
            logits[:, self.spec.num_token_ids :] = float("-inf")
        return logits

    def layer_weights(self, index: int) -> LayerWeights:
        """Plain tensors of one loaded layer, as its products see them: copy before changing."""
        return plain_weights(self._layers[index])

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that one pass reads: every matrix once, and the head."""
        layers = [matrix.num_bytes for one in self._layers.values() for matrix in one.matrices]
        return sum(layers) + self._head.num_bytes

    def layer(self, index: int) -> Layer:
        """One loaded layer, ready to run."""
        return self._layers[index]

    def _run(self, indices: range, hidden: Tensor, plan: Plan, cache: KvCache) -> Tensor:
        for index in indices:
            hidden = run_layer(self._layers[index], hidden, plan, cache, index)
        return hidden


def make_target(
    weights: TargetWeights,
    spec: ModelSpec,
    exit_layer: int,
    *,
    deterministic: bool,
    quantization: Quantization = Quantization.NONE,
    packed_copy: bool = True,
) -> TargetModel:
    """Fuse and pack or quantize ``weights``; see ``choose_kernels`` for ``packed_copy``.

    Raises ValueError for an exit layer outside [1, L - 1], ModelRefused for a quantization that
    this machine cannot run exactly.
    """
    if not 1 <= exit_layer < spec.num_layers:
        raise ValueError(
            f"drafter.exit_layer={exit_layer} must lie in 1..{spec.num_layers - 1} for a model of "
            f"{spec.num_layers} layers"
        )
    table = weights.embedding
    kernels = choose_kernels(
        table.dtype,
        table.device,
        quantization=quantization,
        deterministic=deterministic,
        packed_copy=packed_copy,
        native=runs_natively(spec, quantization),
    )
    return TargetModel(weights, spec, exit_layer, kernels)


def runs_natively(spec: ModelSpec, quantization: Quantization) -> bool:
    """Whether our own kernels are there for products and attention of these sizes."""
    inputs = (spec.hidden_size, spec.num_heads * spec.head_dim, spec.intermediate_size)
    return fits(inputs, spec.head_dim, is_quantized=quantization is Quantization.INT8)
