"""The loss terms, each a pure function with its equation.

Owns the mathematics; does not know weights, schedules or batches: every term returns one value a
row, unreduced, in the dtype of the logits (float32 in training), from log-probabilities.
Letters: P positions, M kept target ids of a position, J tokens. In the equations p is the target
and q the draft (the paper's p_phi and p_theta; DVI, arXiv 2510.05421).
"""

from __future__ import annotations

import torch
from torch import Tensor


def target_probs(top_logits: Tensor, logsumexp: Tensor) -> tuple[Tensor, Tensor]:
    """p of the M kept ids [P, M] and of all other ids as one outcome [P], from a trace's values."""
    kept = (top_logits - logsumexp[:, None]).exp()
    return kept, (1 - kept.sum(-1)).clamp(min=0)


def forward_kl(target: tuple[Tensor, Tensor], log_draft: tuple[Tensor, Tensor]) -> Tensor:
    """KL(p || q) = sum_m p_m (log p_m - log q_m) + p_tail (log p_tail - log q_tail), [P].

    Each pair is (kept ids [P, M], tail [P]). Lumping the tail makes it a lower bound of the full
    divergence, equal to it if M = V. Outcomes with p = 0 contribute 0, whatever q is.
    """
    kept = _kl_summand(target[0], log_draft[0]).sum(-1)
    return kept + _kl_summand(target[1], log_draft[1])


def cross_entropy(log_draft: Tensor) -> Tensor:
    """CE = -log q(x), x the token that the target committed, or an accepted proposal, [J]."""
    return -log_draft


def policy_gradient(log_draft: Tensor, reward: Tensor, baseline: float) -> Tensor:
    """-(r - b) log q(a) of a judged proposal a, [J]: reward r = 1 if accepted, 0 if rejected.

    Its gradient is the REINFORCE estimate of -grad E_{a ~ q}[r] only where a was sampled from the
    q that is being trained: rejection mode, proposals of the logged policy, lag 0. With greedy
    proposals it is reward-weighted regression towards what was accepted; with coupled noise it is
    biased, since whether a is accepted depends on the noise that chose it.
    """
    return -(reward - baseline) * log_draft


def _kl_summand(target: Tensor, log_draft: Tensor) -> Tensor:
    """p (log p - log q), 0 where p = 0."""
    finite = log_draft.masked_fill(target == 0, 0.0)
    return torch.xlogy(target, target) - target * finite
