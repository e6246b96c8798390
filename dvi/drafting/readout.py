"""From a draft state to draft logits, and the chain that feeds each token to the next step.

Owns the draft's own final norm and the low-rank part of its head; does not know what made the
state. On the decode path, so it keeps Python to one call an operation.
Letters: n rows, r head rank, V head rows, R rows of a trimmed head, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.drafting.base import DraftRequest, Proposal
from dvi.drafting.branch import DraftBranch
from dvi.drafting.draw import Draft, draw
from dvi.drafting.layout import NORM
from dvi.drafting.vocab import vocab_of
from dvi.modeling.linear import Linear, Packing
from dvi.modeling.plan import Plan, Planner, Segment
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter


@dataclass(frozen=True, slots=True)
class TrimmedHead:
    """The rows of the base head that a draft step computes, in storage of their own."""

    rows: Linear  # [R, H]
    ids: Tensor  # [R] int64, ascending

    def project(self, normed: Tensor) -> Tensor:
        """[n, H] -> [n, R], float32 or wider."""
        logits = self.rows(normed)
        return logits if logits.dtype == torch.float64 else logits.float()

    def spread(self, logits: Tensor, vocab_size: int) -> Tensor:
        """[n, R] -> [n, V]: -inf for ids without a row, which are never proposed."""
        full = logits.new_full((len(logits), vocab_size), float("-inf"))
        return full.index_copy_(1, self.ids, logits)


@dataclass(frozen=True, slots=True)
class Readout:
    """Draft norm and head of one version; an untrimmed base head is the target's packed one."""

    norm: Tensor  # [H], float32 or wider
    eps: float
    factor_a: Tensor | None  # [H, r], transposed for the product; None at version 0
    factor_b: Tensor | None  # [r, V], or [r, R] of a trimmed head; scale included
    trimmed: TrimmedHead | None

    def logits(self, target: TargetModel, hidden: Tensor) -> Tensor:
        """[n, H] -> [n, V]: head(h) + scale * (h A^T) B^T with h = draft norm of ``hidden``."""
        wide = hidden.to(self.norm.dtype)
        normed = F.rms_norm(wide, self.norm.shape, self.norm, self.eps)
        head = target if self.trimmed is None else self.trimmed
        logits = head.project(normed.to(hidden.dtype))
        if self.factor_a is not None and self.factor_b is not None:
            logits.addmm_(normed @ self.factor_a, self.factor_b)
        if self.trimmed is None:
            return logits
        return self.trimmed.spread(logits, target.spec.vocab_size)


def make_readout(branch: DraftBranch, adapter: Adapter | None, packing: Packing) -> Readout:
    """The readout of a checked adapter, or of version 0; fresh storage.

    Raises AdapterRefused for a list of rows that does not fit.
    """
    dtype, device, eps = branch.layout.dtype, branch.head.device, branch.spec.norm_eps
    stored = None if adapter is None else adapter.draft_vocab
    vocab = vocab_of(stored, branch.vocab_size, branch.spec)
    trimmed = None
    if vocab is not None:
        ids = vocab.ids.to(device)
        trimmed = TrimmedHead(Linear(branch.head[ids], None, packing), ids)
    if adapter is None:
        return Readout(branch.norm.to(dtype, copy=True), eps, None, None, trimmed)
    head, tensors = branch.layout.head, adapter.tensors
    factor_b = tensors[head.name_b] if vocab is None else tensors[head.name_b][vocab.ids]
    return Readout(
        norm=tensors[NORM].to(device, copy=True),
        eps=eps,
        factor_a=tensors[head.name_a].to(device).t().contiguous(),
        factor_b=(factor_b.to(device) * head.scale).t().contiguous(),
        trimmed=trimmed,
    )


def chain(
    plans: Planner,
    requests: Sequence[DraftRequest],
    logits_of: Callable[[Plan], Tensor],
    adapter_version: int,
) -> list[Proposal]:
    """Propose token by token; a step runs the requests that want more tokens as one pass.

    ``logits_of`` gives draft logits [n, V] of a pass of one token a request. The token after
    position + i is chosen with the noise of its own position, so that verification, which uses
    the same noise, agrees as often as the two distributions allow (arXiv 2408.07978).
    """
    drafts = [Draft(request) for request in requests]
    while active := [draft for draft in drafts if draft.wants_more]:
        plan = plans.plan(
            [Segment(one.request.row, one.position, (one.last_token,)) for one in active]
        )
        draw(active, logits_of(plan))
    return [draft.finish(adapter_version) for draft in drafts]
