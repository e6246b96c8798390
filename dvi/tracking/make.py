"""The tracker that the config asks for.

Owns the choice and the fan-out to sinks; imports W&B only when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from dvi.config import TrackingConfig
from dvi.tracking.base import LIVE, Alert, KeptAdapter, Value, make_row
from dvi.tracking.jsonl import JsonlSink
from dvi.tracking.sink import Sink, SinkThread

CLOSE_TIMEOUT_S = 8.0  # within the drain time of the server


class Tracker:
    """Hands every row to every sink; with no sinks it is ``tracking=none``.

    Takes numbers from any thread. No method but ``close`` waits, and none raises: what cannot be
    taken is dropped and counted. Only loops call a tracker: components hand out ``gauges()``.
    """

    def __init__(self, sinks: Sequence[SinkThread], now_s: Callable[[], float] = time.time) -> None:
        self._sinks = sinks
        self._now_s = now_s

    def log(self, family: str, row: Mapping[str, Value]) -> None:
        """Take one row; names without a slash get ``family/`` in front."""
        if self._sinks:
            full = make_row(family, row, self._now_s())
            for sink in self._sinks:
                sink.offer(full)

    def artifact(self, version: int, folder: Path, aliases: tuple[str, ...] = LIVE) -> None:
        """Take an adapter, promoted unless ``aliases`` say otherwise; a sink may keep its files."""
        for sink in self._sinks:
            sink.offer(KeptAdapter(version, folder, aliases))

    def alert(self, title: str, text: str) -> None:
        """Tell a person, where a sink can; the row of the same event goes through ``log``."""
        for sink in self._sinks:
            sink.offer(Alert(title, text))

    def gauges(self) -> Mapping[str, float]:
        """``tracking_rows_dropped``: rows that reached no disk and no server so far."""
        return {"tracking_rows_dropped": float(sum(sink.dropped() for sink in self._sinks))}

    def close(self) -> None:
        """Let the sinks finish, within CLOSE_TIMEOUT_S together."""
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for sink in self._sinks:
            sink.close(max(0.1, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def make_tracker(
    config: TrackingConfig,
    state_dir: Path,
    job_type: str,
    run_config: Mapping[str, Any],
    group_dir: Path | None = None,
) -> Tracker:
    """A started tracker; ``job_type`` is serve, train or bench.

    Rows lie in ``state_dir``; its runs of W&B are of one group with those over ``group_dir``.
    ``run_config`` goes to W&B with its secrets masked. ValueError when W&B is asked for and not
    installed.
    """
    sinks: list[Sink] = []
    if config.kind != "none":
        sinks.append(JsonlSink(state_dir / "metrics.jsonl", config.max_bytes))
    if config.kind == "wandb":
        sinks.append(_wandb_sink(config, state_dir, job_type, run_config, group_dir or state_dir))
    threads = [SinkThread(sink) for sink in sinks]
    for thread in threads:
        thread.start()
    return Tracker(threads)


def _wandb_sink(
    config: TrackingConfig,
    state_dir: Path,
    job_type: str,
    run_config: Mapping[str, Any],
    group_dir: Path,
) -> Sink:
    try:
        from dvi.tracking.wandb_sink import WandbSink
    except ModuleNotFoundError as error:
        raise ValueError(
            "tracking=wandb needs the wandb package: pip install 'dvi-serving[wandb]'"
        ) from error
    return WandbSink(config, state_dir, job_type, run_config, group_dir)
