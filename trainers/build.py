"""Puts a training together from a config and the things that only a process can open.

Owns the wiring; does not know files, locks or time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dvi.config import DviConfig, TrainerConfig
from dvi.modeling.target import TargetModel
from dvi.registry import Registry
from dvi.replay import ReplayStore
from trainers.checkpoint import CheckpointReader, CheckpointStore, Identity, free_to_write
from trainers.draft import Draft, make_draft
from trainers.gate import GateRule
from trainers.intake import Intake
from trainers.learner import Learner
from trainers.memory import Memory
from trainers.ranks import ONE, Ranks
from trainers.rows import Rows
from trainers.shallow import DraftInputs, EmbeddedIds, ShallowStates
from trainers.training import Training, TrainingParts
from trainers.versions import Versions


@dataclass(frozen=True, slots=True)
class Ground:
    """What a training stands on; whoever opened it closes it."""

    target: TargetModel  # the shallow part is enough
    base_fingerprint: str
    store: ReplayStore
    registry: Registry
    checkpoint_dir: Path
    ranks: Ranks = ONE
    may_write: Callable[[], None] = free_to_write  # asked before every checkpoint and turn


def build_training(config: DviConfig, ground: Ground) -> Training:
    """A training at its start: call ``resume`` before any other verb.

    Raises ValueError for a drafter that has nothing to train.
    """
    draft = make_draft(config.drafter, ground.target, config.run.seed)
    intake = make_intake(config.trainer, config.run.seed)
    is_writer = ground.ranks.rank == 0
    checkpoints = CheckpointStore if is_writer else CheckpointReader
    return Training(
        TrainingParts(
            learner=make_learner(config, ground.target, draft, ground.ranks),
            intake=intake,
            rows=Rows(ground.store, intake, ground.target.spec.num_token_ids),
            versions=Versions(ground.registry, draft, ground.base_fingerprint),
            checkpoints=checkpoints(ground.checkpoint_dir, ground.may_write),
            identity=Identity(ground.base_fingerprint, drafter_identity(config, draft)),
            gate=GateRule(config.trainer.gate_confidence, max(1, config.decoding.draft_len)),
        ),
        config.trainer,
    )


def make_learner(
    config: DviConfig, target: TargetModel, draft: Draft, ranks: Ranks = ONE
) -> Learner:
    """A learner with room for one batch of whole windows."""
    trainer = config.trainer
    rows = max(trainer.batch_size, trainer.max_holdout_traces, trainer.min_holdout_traces)
    inputs: DraftInputs = ShallowStates(target, rows, trainer.max_seq_len)
    if draft.branch.embedding is not None:
        inputs = EmbeddedIds(target, draft.branch.embedding, rows)
    objective = replace(
        config.objective, lk_mode=config.objective.lk_mode or config.decoding.verification
    )
    return Learner(draft, inputs, objective, trainer, ranks)


def make_intake(config: TrainerConfig, seed: int) -> Intake:
    """An empty intake whose gate can always be filled."""
    memory = Memory(config.newest_rows, config.reservoir_rows, seed)
    max_holdout = max(config.max_holdout_traces, config.min_holdout_traces)
    return Intake(memory, first_rows=config.batch_size, max_holdout=max_holdout)


def drafter_identity(config: DviConfig, draft: Draft) -> dict[str, Any]:
    """The part of the drafter's config that decides what trained values mean."""
    return {
        **asdict(draft.layout.drafter),
        "alphas": draft.layout.alphas(),
        "zero_block_output": config.drafter.zero_block_output,
    }
