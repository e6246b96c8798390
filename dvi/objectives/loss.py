"""The training loss: all terms of a batch under the schedule, with bounded memory.

Owns reduction and weights; the terms own the mathematics. Does not know optimizer, traces or
adapters, nor whether a loss is finite: that is the learner's check.
Letters: P positions, V vocabulary, M kept target ids, J judged proposals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dvi.config.learning import ObjectiveConfig
from dvi.objectives.schedule import Shares, shares_at
from dvi.objectives.terms import (
    cross_entropy,
    draft_log_probs,
    entropy,
    forward_kl,
    policy_gradient,
)

_CHUNK_ROWS = 16  # rows of logits worked on at once: 3 MB at V = 49,152, which a cache holds


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target at P committed positions, from traces: raw logits at T = 1."""

    top_ids: Tensor  # [P, M] int64, descending by logit
    top_logits: Tensor  # [P, M] float32
    logsumexp: Tensor  # [P] float32, over the whole vocabulary
    committed: Tensor  # [P] int64, the token that was committed


@dataclass(frozen=True, slots=True)
class Judged:
    """Neural proposals whose fate is known: accepted ones and first rejects."""

    index: Tensor  # [J] int64, row of P at which it was proposed
    token: Tensor  # [J] int64
    reward: Tensor  # [J] in {0, 1}: accepted
    lag: Tensor  # [J] int64, adapter versions behind the newest when it was proposed


@dataclass(frozen=True, slots=True)
class LossReport:
    """The weighted loss and its parts; only ``loss`` carries a gradient.

    Parts are unweighted means: kl, ce, entropy and agreement over positions; reward_ce over
    accepted, pg and reward over all judged proposals within ``max_lag``. A mean over nothing is 0,
    and so is the entropy while its weight is 0 (it is not computed).
    """

    loss: Tensor  # []
    kl: float
    ce: float
    reward_ce: float
    pg: float
    entropy: float
    agreement: float  # share of positions where draft and target have the same arg-max
    reward: float  # mean reward: what the baseline follows
    num_positions: int
    num_judged: int  # used by the reward terms


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weight of each term's sum: configured weight x share / number of summands."""

    kl: float
    ce: float
    reward_ce: float
    pg: float
    entropy: float
    baseline: float


def total_loss(
    draft_logits: Tensor,
    teacher: Teacher,
    judged: Judged,
    config: ObjectiveConfig,
    *,
    step: int,
    baseline: float,
) -> LossReport:
    """The loss of one optimizer step.

    kl_weight * kl_share * mean KL + ce_weight * mean CE(committed) + reward_share *
    (reward_ce_weight * mean CE(accepted) + pg_weight * mean PG - entropy_weight * mean H).

    ``draft_logits`` [P, V], P >= 1, raw. Memory beside it: its gradient, made here chunk by chunk,
    and nothing else of its size. So the gradient exists after this call; ``loss.backward()`` hands
    it on, once.
    """
    judged = _within_lag(judged, config.max_lag)
    counts = (draft_logits.shape[0], int(judged.reward.sum()), judged.reward.numel())
    weights = _weights(config, shares_at(config, step), counts, baseline)
    loss, sums = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]
        draft_logits, teacher, judged, weights
    )
    positions, accepted, all_judged = (max(count, 1) for count in counts)
    kl, ce, reward_ce, pg, entropy_sum, agreed = sums.tolist()
    return LossReport(
        loss=loss,
        kl=kl / positions,
        ce=ce / positions,
        reward_ce=reward_ce / accepted,
        pg=pg / all_judged,
        entropy=entropy_sum / positions,
        agreement=agreed / positions,
        reward=counts[1] / all_judged,
        num_positions=counts[0],
        num_judged=counts[2],
    )


def _within_lag(judged: Judged, max_lag: int) -> Judged:
    fresh = judged.lag <= max_lag
    return Judged(judged.index[fresh], judged.token[fresh], judged.reward[fresh], judged.lag[fresh])


def _weights(
    config: ObjectiveConfig, shares: Shares, counts: tuple[int, int, int], baseline: float
) -> _Weights:
    positions, accepted, judged = (max(count, 1) for count in counts)
    return _Weights(
        kl=config.kl_weight * shares.kl / positions,
        ce=config.ce_weight / positions,
        reward_ce=config.reward_ce_weight * shares.reward / accepted,
        pg=config.pg_weight * shares.reward / judged,
        entropy=config.entropy_weight * shares.reward / positions,
        baseline=baseline,
    )


class _ChunkedLoss(torch.autograd.Function):
    """Loss and gradient in one sweep over chunks of rows; the rows are independent."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        teacher: Teacher,
        judged: Judged,
        weights: _Weights,
    ) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0]
        gradient = torch.empty_like(logits) if wanted else None
        loss = torch.zeros((), dtype=torch.float64, device=logits.device)
        sums = torch.zeros(6, dtype=torch.float64, device=logits.device)
        for start in range(0, logits.shape[0], _CHUNK_ROWS):
            rows = slice(start, min(start + _CHUNK_ROWS, logits.shape[0]))
            with torch.set_grad_enabled(wanted):
                chunk = logits[rows].detach().requires_grad_(wanted)
                part, part_sums = _chunk_loss(
                    chunk, _rows_of(teacher, rows), _judged_of(judged, rows), weights
                )
            if gradient is not None:
                (gradient[rows],) = torch.autograd.grad(part, chunk)
            loss += part.detach()
            sums += part_sums
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(sums)
        return loss.to(logits.dtype), sums

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient.mul_(upstream[0]), None, None, None


def _rows_of(teacher: Teacher, rows: slice) -> Teacher:
    return Teacher(
        teacher.top_ids[rows],
        teacher.top_logits[rows],
        teacher.logsumexp[rows],
        teacher.committed[rows],
    )


def _judged_of(judged: Judged, rows: slice) -> Judged:
    """The judged proposals of a chunk, their index counted from its first row."""
    inside = (judged.index >= rows.start) & (judged.index < rows.stop)
    return Judged(
        judged.index[inside] - rows.start,
        judged.token[inside],
        judged.reward[inside],
        judged.lag[inside],
    )


def _chunk_loss(
    logits: Tensor, teacher: Teacher, judged: Judged, weights: _Weights
) -> tuple[Tensor, Tensor]:
    """Weighted loss [] and the unweighted sums [6] of a chunk's terms."""
    draft = draft_log_probs(logits, teacher.top_ids)
    reward = judged.reward.to(logits.dtype)
    log_judged = draft.of(judged.index, judged.token)
    rows = torch.arange(logits.shape[0], device=logits.device)
    kl = forward_kl(
        draft, teacher.top_logits.to(logits.dtype), teacher.logsumexp.to(logits.dtype)
    ).sum()
    ce = cross_entropy(draft.of(rows, teacher.committed)).sum()
    reward_ce = (reward * cross_entropy(log_judged)).sum()
    pg = policy_gradient(log_judged, reward, weights.baseline).sum()
    bonus = entropy(draft).sum() if weights.entropy > 0 else torch.zeros_like(kl)
    agreed = (logits.argmax(-1) == teacher.top_ids[:, 0]).sum()
    loss = (
        weights.kl * kl
        + weights.ce * ce
        + weights.reward_ce * reward_ce
        + weights.pg * pg
        - weights.entropy * bonus
    )
    sums = torch.stack([kl, ce, reward_ce, pg, bonus, agreed.to(kl.dtype)]).detach()
    return loss, sums.double()
