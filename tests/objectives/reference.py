"""The loss written down once more, eagerly and in float64: the specification."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.config import ObjectiveConfig
from dvi.objectives import Judged, Teacher


@dataclass(frozen=True)
class Case:
    """One batch in a named regime; float64."""

    logits: Tensor  # [P, V]
    target_logits: Tensor  # [P, V]
    teacher: Teacher
    judged: Judged


def make_teacher(target_logits: Tensor, num_kept: int, generator: torch.Generator) -> Teacher:
    top_logits, top_ids = target_logits.topk(num_kept)
    committed = torch.multinomial(target_logits.softmax(-1), 1, generator=generator)[:, 0]
    greedy = torch.arange(len(committed)) % 3 == 0
    return Teacher(top_ids, top_logits, target_logits.logsumexp(-1), committed, greedy)


def make_judged(logits: Tensor, num: int, generator: torch.Generator) -> Judged:
    index = torch.randint(len(logits), (num,), generator=generator)
    return Judged(
        index=index,
        token=torch.multinomial(logits.softmax(-1)[index], 1, generator=generator)[:, 0],
        reward=torch.randint(2, (num,), generator=generator),
        lag=torch.randint(6, (num,), generator=generator),
    )


def make_case(regime: str, num_kept: int, seed: int = 0) -> Case:
    """30 positions of a vocabulary of 40."""
    generator = torch.Generator().manual_seed(seed)
    target, draft = torch.randn(2, 30, 40, generator=generator, dtype=torch.float64)
    target, draft = {
        "usual": (2 * target, 2 * draft),
        "near-uniform": (0.01 * target, 0.01 * draft),
        "draft saturated on the target's choice": (8 * target, 60 * target),
        "draft saturated elsewhere": (2 * target, 60 * draft),
        "target saturated": (60 * target, draft),
        "missing ids": (target.clone(), draft.clone()),
    }[regime]
    if regime == "missing ids":
        target[:, 35:] = draft[:, 35:] = -torch.inf
    return Case(
        logits=draft,
        target_logits=target,
        teacher=make_teacher(target, num_kept, generator),
        judged=make_judged(draft, 25, generator),
    )


def eager_terms(case: Case, logits: Tensor, config: ObjectiveConfig, baseline: float) -> dict:
    """Unweighted means of all terms, by log-softmax over the whole vocabulary."""
    log_draft, draft = logits.log_softmax(-1), logits.softmax(-1)
    target = case.target_logits.softmax(-1)
    kept = torch.zeros_like(target, dtype=torch.bool).scatter(1, case.teacher.top_ids, True)
    tail_target = target.masked_fill(kept, 0).sum(-1)
    tail_draft = draft.masked_fill(kept, 0).sum(-1)
    every = torch.where(target > 0, target * (target.log() - log_draft), 0.0)
    kl = torch.where(kept, every, 0.0).sum(-1)
    some = tail_target > 0
    kl = kl + torch.where(some, tail_target * (tail_target / tail_draft).log(), 0.0)
    judged = case.judged
    fresh = judged.lag <= config.max_lag
    log_judged = log_draft[judged.index[fresh], judged.token[fresh]]
    reward = judged.reward[fresh].double()
    finite = torch.where(draft > 0, log_draft, 0.0)
    rejected = judged.index[judged.reward == 0]
    return {
        "kl": kl.mean(),
        "osd": kl[rejected].mean(),
        "ce": -log_draft[torch.arange(len(logits)), case.teacher.committed].mean(),
        "reward_ce": -(reward * log_judged).sum() / reward.sum().clamp(min=1),
        "pg": -((reward - baseline) * log_judged).sum() / max(len(reward), 1),
        "entropy": -(draft * finite).sum(-1).mean(),
    }
