"""The training loss: all terms of a batch under the schedule.

Owns reduction and weights; the terms own the mathematics, ``vocabulary`` the memory. Does not know
optimizer, traces or adapters, nor whether a loss is finite: that is the learner's check.
Letters: P positions, V vocabulary, M kept target ids, J judged proposals.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.config.learning import ObjectiveConfig
from dvi.objectives.schedule import shares_at
from dvi.objectives.terms import cross_entropy, forward_kl, policy_gradient, target_probs
from dvi.objectives.vocabulary import vocab_sums


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

    ``draft_logits`` [P, V], P >= 1, raw, -inf where an id does not exist. The only other tensor of
    that size is their gradient.
    """
    shares = shares_at(config, step)
    judged = _within_lag(judged, config.max_lag)
    draft = _draft_log_probs(
        draft_logits, teacher, judged, with_entropy=config.entropy_weight * shares.reward > 0
    )
    reward = judged.reward.to(draft_logits.dtype)
    kl = forward_kl(
        target_probs(
            teacher.top_logits.to(draft_logits.dtype), teacher.logsumexp.to(draft_logits.dtype)
        ),
        (draft.kept, draft.tail),
    ).mean()
    ce = cross_entropy(draft.committed).mean()
    reward_ce = (reward * cross_entropy(draft.judged)).sum() / reward.sum().clamp(min=1)
    pg = policy_gradient(draft.judged, reward, baseline).sum() / max(len(reward), 1)
    entropy = draft.entropy.mean()
    rewarded = (
        config.reward_ce_weight * reward_ce
        + config.pg_weight * pg
        - config.entropy_weight * entropy
    )
    return LossReport(
        loss=config.kl_weight * shares.kl * kl + config.ce_weight * ce + shares.reward * rewarded,
        kl=kl.item(),
        ce=ce.item(),
        reward_ce=reward_ce.item(),
        pg=pg.item(),
        entropy=entropy.item(),
        agreement=float(draft.agrees.double().mean()),
        reward=float(reward.sum()) / max(len(reward), 1),
        num_positions=len(draft_logits),
        num_judged=len(reward),
    )


@dataclass(frozen=True, slots=True)
class _DraftLogProbs:
    """log q, the draft, at T = 1."""

    kept: Tensor  # [P, M], of the target's kept ids
    tail: Tensor  # [P], of all others together
    committed: Tensor  # [P]
    judged: Tensor  # [J]
    entropy: Tensor  # [P], 0 unless asked for
    agrees: Tensor  # [P] bool, the target's arg-max has the draft's largest logit


def _draft_log_probs(
    logits: Tensor, teacher: Teacher, judged: Judged, *, with_entropy: bool
) -> _DraftLogProbs:
    all_rows = torch.arange(len(logits), device=logits.device)
    picked = torch.stack(
        [torch.cat([all_rows, judged.index]), torch.cat([teacher.committed, judged.token])]
    )  # [2, P + J]
    sums = vocab_sums(logits, teacher.top_ids, picked, with_entropy=with_entropy)
    total = torch.logaddexp(sums.tail, sums.kept.logsumexp(-1))  # [P]
    log_picked = sums.picked - total[picked[0]]
    return _DraftLogProbs(
        kept=sums.kept - total[:, None],
        tail=sums.tail - total,
        committed=log_picked[: len(logits)],
        judged=log_picked[len(logits) :],
        entropy=sums.entropy,
        agrees=sums.kept.detach()[:, 0] == sums.top,
    )


def _within_lag(judged: Judged, max_lag: int) -> Judged:
    fresh = judged.lag <= max_lag
    return Judged(judged.index[fresh], judged.token[fresh], judged.reward[fresh], judged.lag[fresh])
