"""How much of a proposal is accepted: the rule, the laws, and whether drafting pays.

Pure formulas of tensors and numbers; knows no model and no clock. Letters: V vocabulary, K draft
length. ``target`` and ``draft`` are probability tensors [..., V] over the same ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def accept_prefix(proposed: Sequence[int], chosen: Sequence[int]) -> int:
    """Number of proposals accepted: the longest prefix of ``proposed`` that equals ``chosen``.

    ``chosen`` has the target's own token for every position up to the first that differs, or
    further: what stands after it does not count.
    """
    assert len(chosen) <= len(proposed) + 1
    count = 0
    for proposal, choice in zip(proposed, chosen, strict=False):
        if proposal != choice:
            break
        count += 1
    return count


def total_variation(target: Tensor, draft: Tensor) -> Tensor:
    """TV = 1/2 sum_x abs(target_x - draft_x), [...]."""
    return (target - draft).abs().sum(-1) / 2


def rejection_acceptance(target: Tensor, draft: Tensor) -> Tensor:
    """Acceptance at one position of rejection sampling: sum_x min(target_x, draft_x) = 1 - TV."""
    return torch.minimum(target, draft).sum(-1)


def coupled_acceptance(target: Tensor, draft: Tensor) -> Tensor:
    """Acceptance of one position when both take the arg-max under the same Gumbel noise, [...].

    sum_x 1 / sum_y max(target_y / target_x, draft_y / draft_x) (arXiv 2408.07978). Sorted by
    target_y / draft_y the maximum is the second term before x and the first from x on, so the inner
    sum is draft mass before x over draft_x + target mass from x on over target_x: V log V, not V^2.
    """
    order = (target.log() - draft.log()).nan_to_num(0.0).argsort(-1)
    target, draft = target.gather(-1, order), draft.gather(-1, order)
    draft_before = draft.cumsum(-1) - draft
    target_from = target.flip(-1).cumsum(-1).flip(-1)
    both = target * draft  # an id that one side never takes is never agreed on
    agreed = both / (draft_before * target + target_from * draft)
    return torch.where(both > 0, agreed, 0.0).sum(-1)


def coupled_lower_bound(target: Tensor, draft: Tensor) -> Tensor:
    """(1 - TV) / (1 + TV), which coupled acceptance never falls below (arXiv 2408.07978)."""
    distance = total_variation(target, draft)
    return (1 - distance) / (1 + distance)


def agreement(draft_ids: Tensor, target_ids: Tensor) -> float:
    """Teacher-forced alpha: share of positions at which draft and target choose alike, or 0."""
    return float((draft_ids == target_ids).double().mean()) if draft_ids.numel() else 0.0


def expected_tokens(alpha: float, draft_len: int) -> float:
    """Tokens a round commits, 1 + alpha + ... + alpha^K, if acceptances are independent."""
    return sum(alpha**power for power in range(draft_len + 1))


def round_s(draft_len: int, draft_step_s: float, verify_s: float) -> float:
    """Time of one round of ``draft_len`` proposals, in seconds."""
    return draft_len * draft_step_s + verify_s


def goodput(alpha: float, draft_len: int, draft_step_s: float, verify_s: float) -> float:
    """Tokens a second at K = ``draft_len``; ``verify_s`` is the pass over K + 1 positions."""
    return expected_tokens(alpha, draft_len) / round_s(draft_len, draft_step_s, verify_s)


def break_even_acceptance(
    draft_step_s: float, verify_s: float, plain_s: float, draft_len: int
) -> float:
    """Smallest acceptance rate at which a round is as fast as plain decoding.

    Solves (1 + alpha + ... + alpha^K) * plain_s = K * draft_step_s + verify_s; inf if even a
    perfect draft loses, 0 if a round costs no more than a plain step.
    """
    wanted = round_s(draft_len, draft_step_s, verify_s) / plain_s
    if wanted > expected_tokens(1.0, draft_len):
        return math.inf
    low, high = 0.0, 1.0
    if wanted <= expected_tokens(low, draft_len):
        return low
    for _ in range(60):  # halves the interval to below float64 resolution
        middle = (low + high) / 2
        if expected_tokens(middle, draft_len) < wanted:
            low = middle
        else:
            high = middle
    return high
