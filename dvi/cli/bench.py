"""`dvi bench`.

Owns nothing; imports the bench, and with it torch, only when the config is right.
"""

from __future__ import annotations

from pathlib import Path

from dvi.cli.app import run_task
from dvi.cli.args import sort_words
from dvi.cli.table import BY_NAME
from dvi.config import DviConfig
from dvi.launch.request import Outcome


def run(arguments: list[str]) -> int:
    """Run the bench."""
    command = BY_NAME["bench"]
    words = sort_words(arguments, command)
    as_json = "--json" in words.flags

    def task(config: DviConfig, run_dir: Path) -> Outcome:
        if config.bench.kind == "http":
            from dvi.bench.http.main import run_http_bench

            return Outcome(run_http_bench(config, run_dir, as_json=as_json))
        from dvi.bench.main import run_bench

        return Outcome(run_bench(config, run_dir, as_json=as_json))

    return run_task(words, command, task)
