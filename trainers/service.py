"""``python -m trainers.service CONFIG_JSON``: the trainer's process, started by the server.

Owns the exit status: 0 when told to stop, 1 with one line when memory or disk did not do it, 2 with
one when something does not fit. Imports nothing heavy at its top: torch takes seconds, in which the
process already has its priority and is no orphan. Does not know what a training
stands on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dvi.config import DviConfig
from dvi.config.io import load_config
from trainers.process import (
    ending_with_parent,
    offer_memory,
    parent_pid,
    stopping_on_signals,
    take_priority,
)


def main(arguments: Sequence[str]) -> int:
    """Run until told to stop; returns the exit status."""
    if len(arguments) != 1:
        print("usage: python -m trainers.service CONFIG_JSON", file=sys.stderr)
        return 2
    stop = threading.Event()
    try:
        with stopping_on_signals(stop), ending_with_parent(parent_pid(), stop):
            return _train(load_config(Path(arguments[0])), stop)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def _train(config: DviConfig, stop: threading.Event) -> int:
    if stop.is_set():
        return 0
    priority = take_priority(priority_of(config))
    offer_memory()
    from trainers.background import train_in_background  # see the module's docstring

    return train_in_background(config, stop, priority)


def priority_of(config: DviConfig) -> str:
    """What is asked for, else: a draft beside a memory waits for idle cores, one that is alone is
    all there is.
    """
    return config.trainer.priority or ("idle" if config.drafter.kind == "auto" else "low")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
