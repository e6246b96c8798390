"""Expected acceptance of one position as a loss: the law of each mode, in logarithms.

Owns the mathematics of three laws; does not know weights, batches or which request is decoded by
which law. All is done with log-probabilities: there the gradient lives on where a probability
underflows. Letters: P positions, M + 1 outcomes of a position: the M kept ids and all others as
one. In the equations p is the target and q the draft, at T = 1.

Lumping the tail makes the two sampled laws upper bounds of those over the whole vocabulary: by at
most min(p_tail, q_tail) for rejection and twice that for coupled (both are concave and homogeneous
in (p, q), hence superadditive). With M = V they are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

LOG_ZERO = -1e4  # stands for log 0: its exp is 0, and differences stay finite


def log_outcomes(kept: Tensor, tail: Tensor) -> Tensor:
    """Log-probabilities [P, M + 1] from those of the kept ids [P, M] and of the tail [P].

    Impossible outcomes become LOG_ZERO, without gradient.
    """
    return torch.cat([kept, tail[:, None]], dim=-1).clamp(min=LOG_ZERO)


def log_acceptance_greedy(log_draft: Tensor) -> Tensor:
    """log q(x), [P], x the target's arg-max: the token that a greedy request committed.

    A greedy draft is accepted with 0 or 1; this is what a sample of it is accepted with, the smooth
    stand-in that agrees with it where q is one-hot. Penalties and masks of the request are in x.
    """
    return log_draft


def log_acceptance_rejection(log_target: Tensor, log_draft: Tensor) -> Tensor:
    """log sum_x min(p_x, q_x), [P], of [P, M + 1]: rejection sampling accepts with 1 - TV."""
    return torch.minimum(log_target, log_draft).logsumexp(-1)


def log_acceptance_coupled(log_target: Tensor, log_draft: Tensor) -> Tensor:
    """log sum_x 1 / sum_y max(p_y / p_x, q_y / q_x), [P], of [P, M + 1] (arXiv 2408.07978).

    The chance that both arg-maxima under the same Gumbel noise agree. Sorted by p_y / q_y the
    maximum is q_y / q_x for y before x and p_y / p_x from x on: M log M, not M^2.
    """
    order = (log_target - log_draft).detach().argsort(-1)
    target, draft = log_target.gather(-1, order), log_draft.gather(-1, order)
    target_from = target.flip(-1).logcumsumexp(-1).flip(-1)  # log of sum p_y over y from x on
    nothing = torch.full_like(draft[:, :1], 2 * LOG_ZERO)
    draft_before = torch.cat([nothing, draft.logcumsumexp(-1)[:, :-1]], dim=-1)
    return (-torch.logaddexp(target_from - target, draft_before - draft)).logsumexp(-1)


def negative_log(log_acceptance: Tensor) -> Tensor:
    """-log alpha, [P]."""
    return -log_acceptance


def blend(kl: Tensor, log_acceptance: Tensor, decay: float) -> Tensor:
    """w KL + (1 - w) (1 - alpha), [P], with w = exp(-decay * alpha) taken as a constant.

    1 - alpha alone has hardly a gradient where the draft knows nothing; there w is near 1 and KL
    leads (the weighted form of LK losses, arXiv 2602.23881).
    """
    acceptance = log_acceptance.exp()
    weight = (-decay * acceptance.detach()).exp()
    return weight * kl + (1 - weight) * (1 - acceptance)
