"""``dvi train``: a bounded run over the rows of a store, in one thread.

Owns the split into trained and held-out rows, and that a run publishes one candidate and promotes
none. Starts from the untrained draft, so that equal seed, rows and config give equal bits. Does not
know the command line.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from dvi.config import DviConfig, TrainerConfig
from dvi.replay import RowKey
from trainers.background import ID_BITS
from trainers.build import Ground, build_training
from trainers.reports import StepReport
from trainers.scoring import Score
from trainers.training import Training

HOLDOUT_INTERVAL = 10  # one row in so many is never trained on
MAX_HOLDOUT_ROWS = 64  # more say little more and cost time
READ_ROWS = 64


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run reached."""

    version: int  # the published candidate
    num_steps: int
    num_dropped: int
    train_rows: int
    holdout_rows: int
    acceptance_before: float  # of the untrained draft on the held-out rows, teacher-forced
    acceptance_after: float


def train_on(
    config: DviConfig, ground: Ground, progress: Callable[[StepReport], None]
) -> TrainResult:
    """Train ``trainer.max_steps`` steps on the rows of ``ground`` and publish one candidate.

    ``progress`` gets each step's report. With ``run.resume`` the run goes on from the checkpoint in
    ``ground``. All processes of a run call this and get the same result; rank 0 writes. Raises
    ValueError for too few rows, a drafter that does not fit, or a checkpoint without
    ``run.resume``.
    """
    training = build_training(run_config(config), ground)
    if not config.run.resume and ground.checkpoint_dir.exists():
        raise ValueError(f"{ground.checkpoint_dir} holds a run: give run.resume=true to go on")
    start_run(training, secrets.randbits(ID_BITS))
    ground.ranks.gather([])  # nobody writes before everybody has looked
    run_steps(training, config.trainer.max_steps, progress)
    finished = [finish_run(training)] if ground.ranks.rank == 0 else []
    return ground.ranks.gather(finished)[0]


def run_config(config: DviConfig) -> DviConfig:
    """The config of a run: every row counts as newest, so that batches are uniform over them."""
    unbounded: TrainerConfig = replace(
        config.trainer, newest_rows=1 << 31, newest_share=1.0, max_holdout_traces=MAX_HOLDOUT_ROWS
    )
    return replace(config, trainer=unbounded)


def start_run(training: Training, new_id: int) -> None:
    """Go on from the run's checkpoint, or split the rows and start at the untrained draft."""
    checkpoint, _ = training.parts.checkpoints.load()
    if checkpoint is not None:
        training.restore(checkpoint)
        training.parts.versions.finish_after_kill()
        return
    training.parts.versions.training_id = new_id
    train, holdout = split_rows(training)
    if not train or not holdout:
        raise ValueError(
            f"there are {len(train) + len(holdout)} usable traces; dvi train needs at least 2: "
            "serve some requests first, or give a file by data=file data.path=..."
        )
    training.parts.intake.memory.admit(train)
    training.parts.intake.holdout.extend(holdout)
    training.parts.intake.num_admitted = len(train) + len(holdout)


def split_rows(training: Training) -> tuple[list[RowKey], list[RowKey]]:
    """Keys to train on and keys to hold out, in the store's order; one trace is never enough."""
    train: list[RowKey] = []
    holdout: list[RowKey] = []
    for number, key in enumerate(usable_keys(training), start=1):
        is_held = number % HOLDOUT_INTERVAL == 0 and len(holdout) < MAX_HOLDOUT_ROWS
        (holdout if is_held else train).append(key)
    if not holdout and len(train) > 1:
        holdout.append(train.pop())
    return train, holdout


def usable_keys(training: Training) -> list[RowKey]:
    """Every row of the store that can be trained on; moves the cursor to its end."""
    keys: list[RowKey] = []
    while listed := training.parts.rows.list_new(READ_ROWS):
        keys += [key for key, usable in listed if usable]
    return keys


def run_steps(training: Training, max_steps: int, progress: Callable[[StepReport], None]) -> None:
    """``max_steps`` batches, dropped ones included, with a checkpoint now and then."""
    learner = training.parts.learner
    while learner.num_steps + learner.num_dropped < max_steps:
        report = training.train_once()
        if report is None:
            raise ValueError("the store lost every row of this run")
        progress(report)


def finish_run(training: Training) -> TrainResult:
    """Score before and after on the held-out rows, publish once, say what came of it."""
    parts = training.parts
    rows = parts.rows.load(list(parts.intake.holdout))
    traces = [row.trace for row in rows]
    training.choose_rows()
    after = parts.learner.score(traces, parts.versions.newest + 1)
    with parts.learner.draft.showing(None):
        before = parts.learner.score(traces, 0)
    published = [entry.version for entry in parts.versions.lineage if entry.version is not None]
    version = (
        published[0]
        if published
        else training.publish_version(run_metrics(before, after, len(traces)), is_promoted=False)
    )
    training.save()
    return TrainResult(
        version=version,
        num_steps=parts.learner.num_steps,
        num_dropped=parts.learner.num_dropped,
        train_rows=len(parts.intake.memory),
        holdout_rows=len(traces),
        acceptance_before=before.agreement,
        acceptance_after=after.agreement,
    )


def run_metrics(before: Score, after: Score, num_traces: int) -> dict[str, float]:
    """For the manifest."""
    return {
        "holdout_agreement_before": before.agreement,
        "holdout_agreement": after.agreement,
        "holdout_traces": num_traces,
        "holdout_positions": after.num_positions,
    }
