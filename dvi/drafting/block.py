"""``drafter=block``: one decoder block over h_k with its own keys and values, then norm and head.

Owns the block kind and its cache; does not know lengths or which positions were committed: it
writes where a plan says, and what a reject leaves behind is overwritten.
Letters: N tokens of one pass, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.base import DraftRequest, DraftWeights, Proposal
from dvi.drafting.branch import DraftBranch, DrafterRoom, copy_layer, merged_matrix
from dvi.drafting.layout import HEAD, DraftLayout, LoraShape, adapter_dtype
from dvi.drafting.readout import chain, make_readout
from dvi.drafting.version import checked_tensors, published_acceptance
from dvi.drafting.vocab import trimmed_size
from dvi.drafting.weights import BranchWeights, Resident
from dvi.modeling.cache import KvCache
from dvi.modeling.layer import LayerWeights, make_layer, run_layer, write_kv
from dvi.modeling.plan import Plan, Planner
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter, DraftShape


def adapted_matrices(block: LayerWeights) -> dict[str, Tensor]:
    """Module path -> matrix [outputs, inputs] of all that carries LoRA, in published order.

    k and v stay frozen, so that draft keys and values are the same under every version
    (ARCHITECTURE fact 1).
    """
    return {
        "draft_block.self_attn.q_proj": block.q,
        "draft_block.self_attn.o_proj": block.o,
        "draft_block.mlp.gate_proj": block.gate,
        "draft_block.mlp.up_proj": block.up,
        "draft_block.mlp.down_proj": block.down,
    }


def block_branch(config: DrafterConfig, target: TargetModel) -> DraftBranch:
    """A copy of target layer ``block_layer`` with LoRA on its matrices and on the head.

    Raises ValueError for a layer that the target does not have.
    """
    spec = target.spec
    source = target.exit_layer if config.block_layer is None else config.block_layer
    if not 0 <= source < spec.num_layers:
        raise ValueError(f"drafter.block_layer={source} must lie in 0..{spec.num_layers - 1}")
    base = copy_layer(target.layer_weights(source), zero_output=config.zero_block_output)
    loras = [
        LoraShape(module, matrix.shape[1], matrix.shape[0], config.lora_rank, config.lora_alpha)
        for module, matrix in adapted_matrices(base).items()
    ]
    head = (config.head_lora_rank, config.head_lora_alpha)
    loras.append(LoraShape(HEAD, spec.hidden_size, spec.vocab_size, *head))
    layout = DraftLayout(
        drafter=DraftShape(
            kind="block",
            exit_layer=target.exit_layer,
            block_layer=source,
            lora_rank=config.lora_rank,
            head_lora_rank=config.head_lora_rank,
        ),
        hidden_size=spec.hidden_size,
        loras=tuple(loras),
        dtype=adapter_dtype(target.dtype),
    )
    norm = target.final_norm.clone()
    return DraftBranch(layout, spec, base, norm, target.head, trimmed_size(config, spec))


def merged_block(branch: DraftBranch, tensors: Mapping[str, Tensor] | None) -> LayerWeights:
    """The block with base + scale * B A in fresh tensors; the base itself at version 0."""
    assert branch.block is not None
    if tensors is None:
        return branch.block
    loras = {lora.module: lora for lora in branch.layout.loras}

    def merged(module: str) -> Tensor:
        return merged_matrix(matrices[module], loras[module], tensors)

    matrices = adapted_matrices(branch.block)
    return replace(
        branch.block,
        q=merged("draft_block.self_attn.q_proj"),
        o=merged("draft_block.self_attn.o_proj"),
        gate=merged("draft_block.mlp.gate_proj"),
        up=merged("draft_block.mlp.up_proj"),
        down=merged("draft_block.mlp.down_proj"),
    )


def make_block_drafter(
    config: DrafterConfig, target: TargetModel, room: DrafterRoom
) -> BlockDrafter:
    """A block drafter at version 0 with its own one-layer cache."""
    cache = target.new_cache(1, room.num_rows, room.max_len)
    return BlockDrafter(target, block_branch(config, target), cache, room)


class BlockDrafter:
    """Runs h_k through its block; its cache follows what ``observe`` is shown."""

    kind = "block"

    def __init__(
        self, target: TargetModel, branch: DraftBranch, cache: KvCache, room: DrafterRoom
    ) -> None:
        self.target = target
        self.branch = branch
        self.cache = cache  # one layer, rows as in the target's
        self.base_fingerprint = room.base_fingerprint
        self.plans: Planner = room.buckets or target
        version_0 = self.prepare(None)
        self._resident = None if room.buckets is None else Resident(branch, version_0)
        self.load(version_0)

    @property
    def adapter_version(self) -> int:
        """Version of the weights in use."""
        return self.weights.adapter_version

    @property
    def expected_acceptance(self) -> float | None:
        """See Drafter."""
        return self.weights.expected_acceptance

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        """Write the keys and values of every position of the pass, whoever proposed it."""
        (layer,) = self.weights.layers

        def write(hidden: Tensor) -> None:
            write_kv(layer, hidden, plan, self.cache, 0)

        if self._resident is None:  # the next version has other storage: not to be recorded
            write(hidden)
        else:
            plan.run("observe", write, hidden)

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:
        """See Drafter."""
        weights = self.weights
        (layer,) = weights.layers

        def logits_of(plan: Plan) -> Tensor:
            def step() -> Tensor:
                hidden = self.target.shallow(plan, cache)
                drafted = run_layer(layer, hidden, plan, self.cache, 0)
                return weights.readout.logits(self.target, drafted)

            return plan.real(plan.run(("draft", cache.place), step))

        return chain(self.plans, requests, logits_of, weights.adapter_version)

    def prepare(self, adapter: Adapter | None) -> BranchWeights:
        """See Drafter."""
        version, tensors = 0, None
        if adapter is not None:
            version = adapter.version
            tensors = checked_tensors(adapter, self.branch.layout, self.base_fingerprint)
        block = merged_block(self.branch, tensors)
        return BranchWeights(
            adapter_version=version,
            layers=(make_layer(block, self.target.spec, self.target.packing),),
            readout=make_readout(self.branch, adapter, self.target.packing),
            expected_acceptance=published_acceptance(adapter),
        )

    def load(self, weights: DraftWeights) -> None:
        """See Drafter."""
        assert isinstance(weights, BranchWeights), type(weights)
        self.weights = weights if self._resident is None else self._resident.hold(weights)

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """Copy keys and values: frozen projections made them, so every version's are the same."""
        self.cache.copy_span(source_row, row, start, end)

    def release(self, row: int) -> None:
        """Nothing to forget: a new request overwrites the row from where its own prompt begins."""
