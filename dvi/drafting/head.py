"""``drafter=head``: the paper's draft, LoRA on the output head over h_k (DVI, arXiv 2510.05421).

Owns the head kind; it has no cache of its own and does not know which positions were committed.
Letters: N tokens of one pass, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.base import DraftRequest, DraftWeights, Proposal
from dvi.drafting.branch import DraftBranch, DrafterRoom
from dvi.drafting.layout import HEAD, DraftLayout, LoraShape, adapter_dtype
from dvi.drafting.readout import chain, make_readout
from dvi.drafting.version import checked_tensors, published_acceptance
from dvi.drafting.vocab import trimmed_size
from dvi.drafting.weights import BranchWeights, Resident
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan, Planner
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter, DraftShape


def head_branch(config: DrafterConfig, target: TargetModel) -> DraftBranch:
    """LoRA on the output head alone: rank ``lora_rank``, scale 1."""
    spec, rank = target.spec, config.lora_rank
    layout = DraftLayout(
        drafter=DraftShape(kind="head", exit_layer=target.exit_layer, lora_rank=rank),
        hidden_size=spec.hidden_size,
        loras=(LoraShape(HEAD, spec.hidden_size, spec.vocab_size, rank, float(rank)),),
        dtype=adapter_dtype(target.dtype),
    )
    norm = target.final_norm.clone()
    return DraftBranch(layout, spec, None, norm, target.head, trimmed_size(config, spec))


def make_head_drafter(config: DrafterConfig, target: TargetModel, room: DrafterRoom) -> HeadDrafter:
    """A head drafter at version 0."""
    return HeadDrafter(target, head_branch(config, target), room)


class HeadDrafter:
    """Reads h_k through the draft's norm and head."""

    kind = "head"

    def __init__(self, target: TargetModel, branch: DraftBranch, room: DrafterRoom) -> None:
        self.target = target
        self.branch = branch
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
        """Nothing to keep: a state is read in the step that makes it."""

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:
        """See Drafter."""
        weights = self.weights

        def logits_of(plan: Plan) -> Tensor:
            def step() -> Tensor:
                return weights.readout.logits(self.target, self.target.shallow(plan, cache))

            return plan.real(plan.run(("draft", cache.place), step))

        return chain(self.plans, requests, logits_of, weights.adapter_version)

    def prepare(self, adapter: Adapter | None) -> BranchWeights:
        """See Drafter."""
        if adapter is not None:
            checked_tensors(adapter, self.branch.layout, self.base_fingerprint)
        return BranchWeights(
            adapter_version=0 if adapter is None else adapter.version,
            layers=(),
            readout=make_readout(self.branch, adapter, self.target.packing),
            expected_acceptance=published_acceptance(adapter),
        )

    def load(self, weights: DraftWeights) -> None:
        """See Drafter."""
        assert isinstance(weights, BranchWeights), type(weights)
        self.weights = weights if self._resident is None else self._resident.hold(weights)

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """No state of its own."""

    def release(self, row: int) -> None:
        """Nothing is kept for a row."""
