"""What the Hydra applications share: words to request, request to launch.

Owns nothing but the order; imports Hydra only when called.
"""

from __future__ import annotations

from dvi.cli.args import Words, launch_request
from dvi.cli.table import Command
from dvi.config import DviConfig
from dvi.launch.request import Task


def run_task(words: Words, command: Command, task: Task) -> int:
    """Launch the task with the words' overrides and return the exit status."""
    request = launch_request(words, command)
    from dvi.launch.app import run_app

    return run_app(request, task)


def config_of(words: Words, command: Command) -> DviConfig:
    """The checked config of a command that runs in no folder."""
    request = launch_request(words, command)
    from dvi.launch.compose import compose_config

    return compose_config(request)
