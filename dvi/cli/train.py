"""`dvi train`: a Hydra training run on stored traffic or on a file.

Owns the progress bar and the printed result; a run publishes one candidate and never promotes.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from dvi.cli.app import run_task
from dvi.cli.args import Words
from dvi.cli.out import print_table
from dvi.cli.table import Command
from dvi.config import DviConfig
from dvi.config.child import keep_few_kernels
from dvi.launch.folder import launch_rank
from dvi.launch.request import Outcome


def _train(config: DviConfig, run_dir: Path) -> Outcome:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from trainers import run
    from trainers.reports import StepReport

    is_first = launch_rank(os.environ) == 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not is_first) as bar:
        answers = bar.add_task("answering", visible=False)
        steps = bar.add_task("training", total=config.trainer.max_steps)

        def answered(done: int, total: int) -> None:
            bar.update(answers, completed=done, total=total, visible=True)

        def stepped(report: StepReport) -> None:
            text = f"loss {float(report.loss.loss):.3f}"
            bar.update(steps, completed=report.step, description=text)

        result = run.train(config, run_dir, run.Progress(answered, stepped))
    if result is None:  # not the process that tells
        return Outcome()
    print_table(
        [
            {
                "version": result.version,
                "steps": result.num_steps,
                "dropped": result.num_dropped,
                "train_rows": result.train_rows,
                "holdout_rows": result.holdout_rows,
                "acceptance_before": result.acceptance_before,
                "acceptance_after": result.acceptance_after,
            }
        ]
    )
    return Outcome(0, result.acceptance_after)


def _job(config: DviConfig, run_dir: Path, *, publishes: bool) -> Outcome:
    """One run; ``publishes`` where the config does not say."""
    if config.trainer.publish is not None:
        publishes = config.trainer.publish
    if not publishes:  # the candidate stays in the run's folder, out of the user's registry
        config.registry.path = str(run_dir / "adapters")
    return _train(config, run_dir)


def run(words: Words, command: Command) -> int:
    """Train; the value for Hydra's sweepers is the held-out acceptance."""
    if "torch" not in sys.modules:  # where it is, the figures are read already
        keep_few_kernels(os.environ)
    return run_task(words, command, partial(_job, publishes="--multirun" not in words.flags))
