"""One `dvi train`: rows, target and tracker opened, a bounded training on them, all closed.

Owns the order and what the outside is told; does not know the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.home import adapters_dir, replay_url, state_dir
from dvi.config.io import without_secrets
from dvi.modeling.threads import set_thread_modes
from dvi.registry import Registry
from dvi.replay import ReplayStore, open_store
from dvi.tracking import Tracker, make_tracker
from trainers.background import TRAINER_DIR, open_target
from trainers.build import Ground
from trainers.inline import TrainResult, train_on
from trainers.prepared import open_rows, prepare
from trainers.ranks import Ranks, open_ranks
from trainers.reports import StepReport, step_row


@dataclass(frozen=True, slots=True)
class Progress:
    """Who is told how far a run is. Called on rank 0 only."""

    answered: Callable[[int, int], None]  # rows done, rows in all
    stepped: Callable[[StepReport], None]


def train(config: DviConfig, run_dir: Path, progress: Progress) -> TrainResult | None:
    """Train on stored traffic or on a file and publish one candidate; None on other ranks than 0.

    Checkpoints lie in ``run_dir``; with ``run.resume`` the run goes on there. Raises ValueError
    for too few rows, a file, model or drafter that does not fit, or a checkpoint without
    ``run.resume``; ReplayStoreError for a store that cannot be opened.
    """
    set_thread_modes(config.trainer.num_threads)
    ranks = open_ranks(config, os.environ)
    with ExitStack() as stack:
        store = stack.enter_context(open_source(config, ranks, progress))
        target, fingerprint = open_target(config)
        registry = Registry(adapters_dir(config), config.registry.keep_versions)
        ground = Ground(target, fingerprint, store, registry, run_dir / TRAINER_DIR, ranks)
        if ranks.rank:
            train_on(config, ground, lambda _: None)
            return None
        tracker = stack.enter_context(
            make_tracker(
                config.tracking,
                run_dir,
                "train",
                without_secrets(config),
                group_dir=state_dir(config),
            )
        )

        def stepped(report: StepReport) -> None:
            tracker.log("train", step_row(report))
            progress.stepped(report)

        result = train_on(config, ground, stepped)
        tell_result(tracker, registry, result)
    return result


def open_source(config: DviConfig, ranks: Ranks, progress: Progress) -> ReplayStore:
    """The store that the rows come from; rank 0 answers what a file lacks while others wait."""
    if config.data.kind == "replay":
        return open_store(replay_url(config), config.replay)
    prepared = [prepare(config, progress.answered)] if ranks.rank == 0 else []
    return open_rows(ranks.gather(prepared)[0], config.replay)


def tell_result(tracker: Tracker, registry: Registry, result: TrainResult) -> None:
    """The last row, and the adapter itself where the tracker keeps files."""
    tracker.log(
        "adapter",
        {
            "adapter/version": result.version,
            "adapter/holdout_acceptance_before": result.acceptance_before,
            "adapter/holdout_acceptance": result.acceptance_after,
            "adapter/holdout_rows": result.holdout_rows,
        },
    )
    folder = registry.folder(result.version)
    tracker.artifact(result.version, folder, aliases=("candidate",))
