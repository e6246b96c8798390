"""``drafter=model``: a separate small model with the target's tokenizer, LoRA on its matrices.

Owns the model kind and its cache. It reads token ids, not h_k, so that its keys and values depend
on its own weights, whose versions change: see RowText for what that means for a row. Does not know
which positions were committed: what a reject leaves behind is overwritten.
Letters: n rows, N tokens of one pass, H hidden width, V ids of the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.base import DraftRequest, DraftWeights, Proposal
from dvi.drafting.branch import DraftBranch, DrafterRoom, merged_matrix
from dvi.drafting.draw import Draft, draw
from dvi.drafting.layout import HEAD, DraftLayout, LoraShape, adapter_dtype
from dvi.drafting.readout import make_readout
from dvi.drafting.rowtext import RowText
from dvi.drafting.version import checked_tensors, published_acceptance
from dvi.drafting.vocab import trimmed_size
from dvi.drafting.weights import BranchWeights, Resident
from dvi.modeling.buckets import Buckets
from dvi.modeling.cache import KvCache
from dvi.modeling.layer import Layer, LayerWeights, make_layer, run_layer, write_kv
from dvi.modeling.loading import load_draft_model
from dvi.modeling.pair import draft_folder
from dvi.modeling.plan import Plan, Planner, Segment
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter, DraftShape

# Tokens that a row may owe before a pass of its own reads them: a proposal reads what is owed in
# its first step, where up to about so many cost little more than one.
OWED_TOKENS = 32
# Tokens read in one such pass, and the most that a proposal waits for: a row whose whole prompt is
# to be read again after a swap goes on without proposals until it has caught up.
PASS_TOKENS = 256
MATRICES = {  # field of LayerWeights -> module of a layer
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def model_branch(config: DrafterConfig, target: TargetModel) -> DraftBranch:
    """What the trainer trains; reads the model from its folder. Raises ModelRefused."""
    return branch_of(config, load_draft_model(draft_folder(config), target, max_context_len=1))


def branch_of(config: DrafterConfig, model: TargetModel) -> DraftBranch:
    """LoRA on all matrices of a loaded draft model and on its head."""
    spec = model.spec
    layers = tuple(model.layer_weights(index) for index in range(spec.num_layers))
    loras = [
        LoraShape(module, matrix.shape[1], matrix.shape[0], config.lora_rank, config.lora_alpha)
        for index, layer in enumerate(layers)
        for module, matrix in adapted_matrices(index, layer).items()
    ]
    head = (config.head_lora_rank, config.head_lora_alpha)
    loras.append(LoraShape(HEAD, spec.hidden_size, spec.vocab_size, *head))
    layout = DraftLayout(
        drafter=DraftShape(
            kind="model",
            exit_layer=0,  # nothing of the target's layers is under it
            lora_rank=config.lora_rank,
            head_lora_rank=config.head_lora_rank,
        ),
        hidden_size=spec.hidden_size,
        loras=tuple(loras),
        dtype=adapter_dtype(model.dtype),
    )
    norm = model.final_norm.clone()
    size = trimmed_size(config, spec)
    return DraftBranch(layout, spec, None, norm, model.head, size, layers, model.embedding)


def adapted_matrices(index: int, layer: LayerWeights) -> dict[str, Tensor]:
    """Module path -> matrix [outputs, inputs] of one layer, in published order."""
    matrices = (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
    names = (f"draft_block.layers.{index}.{module}" for module in MATRICES.values())
    return dict(zip(names, matrices, strict=True))


def merged_layers(
    branch: DraftBranch, tensors: Mapping[str, Tensor] | None
) -> tuple[LayerWeights, ...]:
    """The layers with base + scale * B A in fresh tensors; the base itself at version 0."""
    if tensors is None:
        return branch.layers
    loras = {lora.module: lora for lora in branch.layout.loras}
    merged = []
    for index, layer in enumerate(branch.layers):
        matrices = adapted_matrices(index, layer)
        q, k, v, o, gate, up, down = (
            merged_matrix(matrix, loras[module], tensors) for module, matrix in matrices.items()
        )
        merged.append(replace(layer, q=q, k=k, v=v, o=o, gate=gate, up=up, down=down))
    return tuple(merged)


def make_model_drafter(
    config: DrafterConfig, target: TargetModel, room: DrafterRoom
) -> ModelDrafter:
    """The model of ``drafter.path`` at version 0. Raises ModelRefused."""
    model = load_draft_model(draft_folder(config), target, max_context_len=1)
    return drafter_of(config, model, target, room)


def drafter_of(
    config: DrafterConfig, model: TargetModel, target: TargetModel, room: DrafterRoom
) -> ModelDrafter:
    """A loaded model as drafter, with a cache of its own."""
    cache = model.new_cache(model.spec.num_layers, room.num_rows, room.max_len)
    branch = branch_of(config, model)
    return ModelDrafter(model, branch, cache, target.spec.vocab_size, room)


class ModelDrafter:
    """Reads what the target reads, a little later, and goes on from there."""

    kind = "model"

    def __init__(
        self,
        model: TargetModel,
        branch: DraftBranch,
        cache: KvCache,
        vocab_size: int,  # of the target's head
        room: DrafterRoom,
    ) -> None:
        self.model = model
        self.branch = branch
        self.cache = cache
        self.vocab_size = vocab_size
        self.base_fingerprint = room.base_fingerprint
        self.texts = [RowText(row) for row in range(cache.num_rows)]
        self.plans: Planner = model
        self._loaded = self.prepare(None)  # what load was given last
        self._resident: Resident | None = None
        if room.buckets is not None:
            self.plans = Buckets(
                model, room.num_rows, room.max_len, OWED_TOKENS, room.buckets.capture
            )
            self._resident = Resident(branch, self._loaded)
        self.load(self._loaded)

    @property
    def adapter_version(self) -> int:
        """Version of the weights in use."""
        return self.weights.adapter_version

    @property
    def expected_acceptance(self) -> float | None:
        """See Drafter."""
        return self.weights.expected_acceptance

    def observe(self, hidden: Tensor, plan: Plan) -> None:  # noqa: ARG002
        """Take the tokens of the pass, and read them where a row owes many; h_k is not used.

        So prompts are read as they come, and rounds that nobody drafts cost a pass in 32.
        """
        for segment in plan.segments:
            self.texts[segment.row].show(segment.start, segment.ids)
        room = max(PASS_TOKENS, len(plan.ids))
        owed = []
        for segment in plan.segments:
            text = self.texts[segment.row]
            if room and text.debt >= OWED_TOKENS:
                owed.append(text.missing(room))
                room -= len(owed[-1].ids)
        if owed:
            self._read(owed)

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:  # noqa: ARG002
        """See Drafter. The first step of a row reads what it owes."""
        drafts = [Draft(request) for request in requests]
        for draft in drafts:
            text = self.texts[draft.request.row]
            text.show(draft.position, [draft.last_token])
            draft.ended = text.debt > PASS_TOKENS
        while active := [draft for draft in drafts if draft.wants_more]:
            draw(active, self._logits([self.texts[one.request.row].missing() for one in active]))
            for draft in active:
                if draft.ids:
                    self.texts[draft.request.row].show(draft.position, [draft.last_token])
        return [draft.finish(self.weights.adapter_version) for draft in drafts]

    def prepare(self, adapter: Adapter | None) -> BranchWeights:
        """See Drafter."""
        layers = tuple(self.model.layer(index) for index in range(self.model.spec.num_layers))
        if adapter is not None:
            tensors = checked_tensors(adapter, self.branch.layout, self.base_fingerprint)
            spec, packing = self.model.spec, self.model.packing
            merged = merged_layers(self.branch, tensors)
            layers = tuple(make_layer(layer, spec, packing) for layer in merged)
        return BranchWeights(
            adapter_version=0 if adapter is None else adapter.version,
            layers=layers,
            readout=make_readout(self.branch, adapter, self.model.packing),
            expected_acceptance=published_acceptance(adapter),
        )

    def load(self, weights: DraftWeights) -> None:
        """See Drafter. What rows hold stays: the keys and values of the version before."""
        assert isinstance(weights, BranchWeights), type(weights)
        if weights is not self._loaded:
            for text in self.texts:
                text.exchange()
        self._loaded = weights
        self.weights = weights if self._resident is None else self._resident.hold(weights)

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """Copy what was read by the weights in use; the rest is read again."""
        copied = self.texts[row].take_over(self.texts[source_row], start, end)
        if copied:
            self.cache.copy_span(source_row, row, copied.start, copied.stop)

    def release(self, row: int) -> None:
        """The row's text stays for whoever starts from it."""
        self.texts[row].is_free = True

    def _read(self, segments: Sequence[Segment]) -> None:
        """Write keys and values of these tokens: the last layer needs no attention for that."""
        plan = self.model.plan(segments)
        hidden = self._run(plan, self.weights.layers[:-1])
        last = len(self.weights.layers) - 1
        write_kv(self.weights.layers[last], hidden, plan, self.cache, last)
        self._note(segments)

    def _logits(self, segments: Sequence[Segment]) -> Tensor:
        """[n, V] after the last token of each segment, -inf for ids that do not exist."""
        plan, layers = self.plans.plan(segments), self.weights.layers
        hidden = plan.real(plan.run("layers", lambda: self._run(plan, layers)))
        self._note(segments)
        widths = torch.tensor([len(segment.ids) for segment in segments])
        last = hidden[(widths.cumsum(0) - 1).to(hidden.device)]
        return of_width(self.weights.readout.logits(self.model, last), self.vocab_size)

    def _run(self, plan: Plan, layers: Sequence[Layer]) -> Tensor:
        """[N, H] after some of the layers."""
        hidden = F.embedding(plan.ids, self.model.embedding)
        for index, layer in enumerate(layers):
            hidden = run_layer(layer, hidden, plan, self.cache, index)
        return hidden

    def _note(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            self.texts[segment.row].num_written = segment.start + len(segment.ids)


def of_width(logits: Tensor, width: int) -> Tensor:
    """[n, rows of the draft's head] -> [n, V]: heads may be padded to different widths."""
    missing = width - logits.shape[1]
    if missing > 0:
        return F.pad(logits, (0, missing), value=float("-inf"))
    return logits[:, :width]
