"""`dvi serve`.

Owns nothing; imports the server, and with it torch, only when the config is right.
"""

from __future__ import annotations

from pathlib import Path

from dvi.cli.app import run_task
from dvi.cli.args import sort_words
from dvi.cli.table import BY_NAME
from dvi.config import DviConfig
from dvi.launch.request import Outcome


def _task(config: DviConfig, run_dir: Path) -> Outcome:
    from serving.main import serve

    return Outcome(serve(config, run_dir))


def run(arguments: list[str]) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    command = BY_NAME["serve"]
    return run_task(sort_words(arguments, command), command, _task)
