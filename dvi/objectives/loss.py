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
from dvi.objectives.accepted import (
    blend,
    log_acceptance_coupled,
    log_acceptance_greedy,
    log_acceptance_rejection,
    log_outcomes,
    negative_log,
)
from dvi.objectives.schedule import shares_at
from dvi.objectives.terms import cross_entropy, forward_kl, policy_gradient, target_probs
from dvi.objectives.vocabulary import vocab_sums

_SAMPLED_LAWS = {"coupled": log_acceptance_coupled, "rejection": log_acceptance_rejection}


@dataclass(frozen=True, slots=True)
class Teacher:
    """The target at P committed positions, from traces: raw logits at T = 1."""

    top_ids: Tensor  # [P, M] int64, descending by logit
    top_logits: Tensor  # [P, M] float32
    logsumexp: Tensor  # [P] float32, over the whole vocabulary
    committed: Tensor  # [P] int64, the token that was committed
    greedy: Tensor  # [P] bool, by a request of temperature 0


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

    Parts are unweighted means: kl, ce, lk, entropy and agreement over positions; osd over rejected,
    reward_ce over accepted, pg and reward over all judged proposals within ``max_lag``. A mean over
    nothing is 0, and so are entropy and lk while their weight is 0 (they are not computed).
    """

    loss: Tensor  # []
    kl: float
    ce: float
    reward_ce: float
    pg: float
    entropy: float
    osd: float
    lk: float
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

    kl_weight * kl_share * mean KL + ce_weight * mean CE(committed) + osd_weight * mean KL(rejected)
    + lk_weight * mean LK + reward_share * (reward_ce_weight * mean CE(accepted) + pg_weight * mean
    PG - entropy_weight * mean H). A term of weight 0 is left out, also where it is not finite.

    ``draft_logits`` [P, V], P >= 1, raw, -inf where an id does not exist; V may be any set of ids
    that the teacher's ids count in. The only other tensor of that size is their gradient.
    """
    shares = shares_at(config, step)
    fresh = _within_lag(judged, config.max_lag)
    draft = _draft_log_probs(
        draft_logits, teacher, fresh, with_entropy=config.entropy_weight * shares.reward > 0
    )
    terms = _term_means(draft, teacher, (judged, fresh), config, baseline)
    weights = {
        "kl": config.kl_weight * shares.kl,
        "ce": config.ce_weight,
        "osd": config.osd_weight,
        "lk": config.lk_weight,
        "reward_ce": config.reward_ce_weight * shares.reward,
        "pg": config.pg_weight * shares.reward,
        "entropy": -config.entropy_weight * shares.reward,
    }
    parts = [weight * terms[name] for name, weight in weights.items() if weight]
    return LossReport(
        loss=torch.stack(parts).sum() if parts else draft_logits.sum() * 0,
        **{name: mean.item() for name, mean in terms.items()},
        agreement=float(draft.agrees.double().mean()),
        reward=float(fresh.reward.sum()) / max(len(fresh.reward), 1),
        num_positions=len(draft_logits),
        num_judged=len(fresh.reward),
    )


def _term_means(
    draft: _DraftLogProbs,
    teacher: Teacher,
    judged: tuple[Judged, Judged],  # all, and those that reward terms may use
    config: ObjectiveConfig,
    baseline: float,
) -> dict[str, Tensor]:
    """The unweighted mean of every term, by its name in ``LossReport``."""
    every, fresh = judged
    dtype = draft.kept.dtype
    target = target_probs(teacher.top_logits.to(dtype), teacher.logsumexp.to(dtype))
    kl = forward_kl(target, (draft.kept, draft.tail))  # [P]
    reward = fresh.reward.to(dtype)
    rejected = every.index[every.reward == 0]
    lk = torch.zeros_like(kl)
    if config.lk_weight:
        log_acceptance = _log_acceptance(draft, teacher, config)
        lk = (
            negative_log(log_acceptance)
            if config.lk_form == "log"
            else blend(kl, log_acceptance, config.lk_decay)
        )
    return {
        "kl": kl.mean(),
        "ce": cross_entropy(draft.committed).mean(),
        "osd": kl[rejected].sum() / max(len(rejected), 1),
        "lk": lk.mean(),
        "reward_ce": (reward * cross_entropy(draft.judged)).sum() / reward.sum().clamp(min=1),
        "pg": policy_gradient(draft.judged, reward, baseline).sum() / max(len(reward), 1),
        "entropy": draft.entropy.mean(),
    }


def _log_acceptance(draft: _DraftLogProbs, teacher: Teacher, config: ObjectiveConfig) -> Tensor:
    """log of the expected acceptance, [P]: each request by the law that decodes it.

    Sampled requests count at T = 1 whatever their temperature: the tail's mass is known only there.
    """
    kept, tail = target_probs(
        teacher.top_logits.to(draft.kept.dtype), teacher.logsumexp.to(draft.kept.dtype)
    )
    outcomes = log_outcomes(kept.log(), tail.log()), log_outcomes(draft.kept, draft.tail)
    assert config.lk_mode in _SAMPLED_LAWS, "lk_mode null is resolved by whoever knows the decoder"
    sampled = _SAMPLED_LAWS[config.lk_mode](*outcomes)
    return torch.where(teacher.greedy, log_acceptance_greedy(draft.committed), sampled)


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
