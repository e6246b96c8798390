"""`dvi serve`, `bench`, `audit` and `demo`: the Hydra applications that are one call.

Owns nothing; imports what is called, and with it torch, only when the config is right.
"""

from __future__ import annotations

from pathlib import Path

from dvi.cli.app import run_task
from dvi.cli.args import Words
from dvi.cli.table import Command
from dvi.config import DviConfig
from dvi.launch.request import Outcome


def serve(config: DviConfig, run_dir: Path, _as_json: bool) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    from serving.main import serve

    return serve(config, run_dir)


def bench(config: DviConfig, run_dir: Path, as_json: bool) -> int:
    """Run the bench that is asked for."""
    if config.bench.kind == "http":
        from dvi.bench.http.main import run_http_bench

        return run_http_bench(config, run_dir, as_json=as_json)
    from dvi.bench.main import run_bench

    return run_bench(config, run_dir, as_json=as_json)


def audit(config: DviConfig, run_dir: Path, as_json: bool) -> int:
    """Audit; 1 if an answer differs from plain decoding by more than the bound."""
    from dvi.audit.main import run_audit

    return run_audit(config, run_dir, as_json=as_json)


def demo(config: DviConfig, run_dir: Path, as_json: bool) -> int:
    """Run the demo; 1 if an answer differed in deterministic mode."""
    from dvi.demo.main import run_demo

    return run_demo(config, run_dir, as_json=as_json)


CALLS = {"serve": serve, "bench": bench, "audit": audit, "demo": demo}


def run(words: Words, command: Command) -> int:
    """Launch the command's call."""
    call, as_json = CALLS[command.name], "--json" in words.flags

    def task(config: DviConfig, run_dir: Path) -> Outcome:
        return Outcome(call(config, run_dir, as_json))

    return run_task(words, command, task)
