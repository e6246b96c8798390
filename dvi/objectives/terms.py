"""The loss terms, each a pure function of logits with its equation.

Owns the mathematics; does not know weights, schedules or batches: every term returns one value a
row, unreduced. Everything is in the dtype of the logits (float32 in training), log-softmax form.
Letters: P positions, V vocabulary, M kept target ids of a position, J judged proposals. In the
equations p is the target, q the draft (the paper's p_phi and p_theta, DVI, arXiv 2510.05421).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_TAIL_FLOOR = 200.0  # log(draft tail) never falls further below the largest logit than this


@dataclass(frozen=True, slots=True)
class DraftLogProbs:
    """What every term needs of the draft's distributions, from one pass over the vocabulary."""

    logits: Tensor  # [P, V]
    top: Tensor  # [P, M], log q of the target's kept ids
    tail: Tensor  # [P], log of the mass of all other ids
    logsumexp: Tensor  # [P]

    def of(self, rows: Tensor, ids: Tensor) -> Tensor:
        """log q of ``ids`` [J] in ``rows`` [J]."""
        return self.logits[rows, ids] - self.logsumexp[rows]


def draft_log_probs(logits: Tensor, top_ids: Tensor) -> DraftLogProbs:
    """Log-probabilities of the kept ids and of the lumped tail, [P, V] and [P, M] in.

    The tail is summed over its own ids, not taken as one minus the rest, which would round away
    where the draft is sure: the kept ids are covered by a logit 200 below the row's largest.
    """
    cover = (logits.detach().amax(-1, keepdim=True) - _TAIL_FLOOR).expand(top_ids.shape)
    tail = logits.scatter(-1, top_ids, cover).logsumexp(-1)
    kept = logits.gather(-1, top_ids)
    total = torch.logaddexp(tail, kept.logsumexp(-1))
    return DraftLogProbs(logits, kept - total[:, None], tail - total, total)


def forward_kl(draft: DraftLogProbs, top_logits: Tensor, logsumexp: Tensor) -> Tensor:
    """KL(p || q) = sum_m p_m (log p_m - log q_m) + p_tail (log p_tail - log q_tail), [P].

    p_m = exp(top_logits_m - logsumexp) for the M kept ids; all others are one outcome,
    p_tail = 1 - sum_m p_m. A lower bound of the full divergence, equal to it if M = V. Outcomes
    with p = 0 contribute 0, whatever q is.
    """
    target = (top_logits - logsumexp[:, None]).exp()
    tail = (1 - target.sum(-1)).clamp(min=0)
    log_draft = draft.top.masked_fill(target == 0, 0.0)
    kept = (torch.xlogy(target, target) - target * log_draft).sum(-1)
    return kept + torch.xlogy(tail, tail) - tail * draft.tail


def cross_entropy(log_draft: Tensor) -> Tensor:
    """CE = -log q(x), x the token that the target committed, or an accepted proposal."""
    return -log_draft


def policy_gradient(log_draft: Tensor, reward: Tensor, baseline: float) -> Tensor:
    """-(r - b) log q(a) of a judged proposal a, [J]: reward r = 1 if accepted, 0 if rejected.

    Its gradient is the REINFORCE estimate of -grad E_{a ~ q}[r] only where a was sampled from the
    q that is being trained: rejection mode, proposals of the logged policy, lag 0. With greedy
    proposals it is reward-weighted regression towards what was accepted; with coupled noise it is
    biased, since whether a is accepted depends on the noise that chose it.
    """
    return -(reward - baseline) * log_draft


def entropy(draft: DraftLogProbs) -> Tensor:
    """H(q) = -sum_x q_x log q_x = logsumexp - sum_x q_x z_x, [P]."""
    exists = draft.logits.isfinite()
    logits = draft.logits.masked_fill(~exists, 0.0)
    probs = (draft.logits - draft.logsumexp[:, None]).exp()
    return draft.logsumexp - (probs * logits).sum(-1)
