"""`dvi audit`.

Owns nothing; imports the audit, and with it torch, only when the config is right.
"""

from __future__ import annotations

from pathlib import Path

from dvi.cli.app import run_task
from dvi.cli.args import sort_words
from dvi.cli.table import BY_NAME
from dvi.config import DviConfig
from dvi.launch.request import Outcome


def run(arguments: list[str]) -> int:
    """Audit; 1 if an answer differs from plain decoding by more than the bound."""
    command = BY_NAME["audit"]
    words = sort_words(arguments, command)
    as_json = "--json" in words.flags

    def task(config: DviConfig, run_dir: Path) -> Outcome:
        from dvi.audit.main import run_audit

        return Outcome(run_audit(config, run_dir, as_json=as_json))

    return run_task(words, command, task)
