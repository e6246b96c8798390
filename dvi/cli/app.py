"""What the Hydra applications share: words to request, request to launch.

Owns the order and the table of a sweep; imports Hydra only when called.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from dvi.cli.args import Words, launch_request
from dvi.cli.out import print_table
from dvi.cli.table import Command
from dvi.config import DviConfig
from dvi.config.home import state_dir
from dvi.config.secrets import mask
from dvi.config.state_file import read_state
from dvi.launch.request import JobResult, Outcome, Task


def run_task(words: Words, command: Command, task: Task) -> int:
    """Launch the task with the words' overrides and return the exit status."""
    request = launch_request(words, command)
    from dvi.launch.app import run_app

    def checked(config: DviConfig, run_dir: Path) -> Outcome:
        read_state(state_dir(config))  # refuses a folder of a newer dvi
        return task(config, run_dir)

    return run_app(request, checked, _print_on_stderr if "--json" in words.flags else print_jobs)


def print_jobs(results: Sequence[JobResult]) -> None:
    """The table at the end of a sweep."""
    print_table(
        [
            {
                "job": number,
                "overrides": mask(" ".join(result.overrides)),
                "result": "failed" if result.status else "done",
                "value": result.value,
                "folder": str(result.folder),
            }
            for number, result in enumerate(results)
        ]
    )


def _print_on_stderr(results: Sequence[JobResult]) -> None:
    """With --json stdout holds one document a job and nothing else."""
    with contextlib.redirect_stdout(sys.stderr):
        print_jobs(results)


def config_of(words: Words, command: Command) -> DviConfig:
    """The checked config of a command that runs in no folder."""
    request = launch_request(words, command)
    from dvi.launch.compose import compose_config

    return compose_config(request)


def config_with_state(words: Words, command: Command) -> DviConfig:
    """``config_of`` for a command that reads the state folder: refuses one of a newer dvi."""
    config = config_of(words, command)
    read_state(state_dir(config))
    return config
