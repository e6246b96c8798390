"""What is measured: an engine of the configured model with throw-away state.

Owns the opening and the requests; does not know clocks.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dvi.bench.prompts import Ids, load_prompts
from dvi.config import DviConfig
from dvi.decoding.engine import Engine
from dvi.decoding.observer import SilentObserver
from dvi.decoding.startup import OpenEngine, Outlets, open_engine
from dvi.registry import Registry
from dvi.replay import TraceWriter, open_store
from dvi.types import DecodeRequest, SamplingParams

BATCH_SIZES = (1, 8)


class PauseObserver(SilentObserver):
    """Keeps every swap pause."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []

    def swap_pause(self, seconds: float) -> None:
        """See EngineObserver."""
        self.pauses_s.append(seconds)


@dataclass(frozen=True, slots=True)
class Subject:
    """An open engine, its prompts, and what watches it."""

    config: DviConfig
    opened: OpenEngine
    prompts: list[Ids]
    pauses: PauseObserver
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.opened.engine

    def request(self, prompt: Ids, params: SamplingParams, *, speculation: bool) -> DecodeRequest:
        """A logged request with an id of its own."""
        name = f"bench-{next(self.numbers)}"
        return DecodeRequest(name, prompt, params, speculation=speculation)


def bench_config(config: DviConfig) -> DviConfig:
    """Fixed K, rows for the largest batch, and no more context than the bench needs."""
    return dataclasses.replace(
        config,
        decoding=dataclasses.replace(config.decoding, adaptive=False),
        serving=dataclasses.replace(config.serving, max_batch_size=max(BATCH_SIZES)),
    )


def _load_live_version(subject: Subject, folder: str) -> None:
    registry = Registry(Path(folder))
    version = registry.current()
    if version == 0:
        raise ValueError(f"bench.adapters: no live version in {folder}")
    drafter = subject.engine.parts.drafter
    drafter.load(drafter.prepare(registry.read(version)))


@contextmanager
def open_subject(config: DviConfig, run_dir: Path) -> Iterator[Subject]:
    """Open the engine; traces go to a store in the run folder, as they do while serving.

    Raises ValueError with one line for a model, prompt file or adapter that cannot be used.
    """
    config = bench_config(config)
    pauses = PauseObserver()
    url = f"sqlite:///{run_dir / 'replay.sqlite'}"
    with (
        open_store(url, config.replay) as store,
        TraceWriter(store, config.replay) as writer,
    ):
        opened = open_engine(config, Outlets(trace_sink=writer.offer, observer=pauses))
        prompts = load_prompts(config.bench, opened.tokenizer)
        subject = Subject(config, opened, prompts, pauses)
        if config.bench.adapters is not None:
            _load_live_version(subject, config.bench.adapters)
        yield subject
