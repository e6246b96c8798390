"""The same training in one thread, driven by its own state alone: equal bits every time.

Owns the order of verbs when nothing is waited for. Stopping between any two verbs and resuming
from a checkpoint made there equals never stopping. Does not know processes or clocks.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainers.reports import StepReport
from trainers.training import Publication, Training

Done = StepReport | Publication | int  # a step, a gate, or how many rows were taken


def replay_stream(training: Training) -> Iterator[Done]:
    """Drive a training through all rows of its store, one row after the other, as if they arrived.

    Yields after each verb what it did. The next verb depends on the training's state only.
    """
    while True:
        if training.is_gate_due():
            publication = training.publish()
            if publication is not None:
                yield publication
        elif training.has_work():
            report = training.train_once()
            if report is not None:
                yield report
        else:
            taken = training.take_new(1)
            if not taken:
                return
            yield taken
