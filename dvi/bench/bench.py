"""What parts measure on: one loaded target, engines on it, and a throw-away trace store.

Owns what is opened once for all parts; does not know clocks or what is measured.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from dvi.bench.stop import Stop
from dvi.config import DviConfig
from dvi.decoding.costs import CostProfile
from dvi.decoding.engine import Engine
from dvi.decoding.observer import SilentObserver
from dvi.decoding.startup import Loaded, OpenEngine, Outlets, engine_on, load_model
from dvi.registry import Registry
from dvi.replay import ReplayStore, TraceWriter, open_store
from dvi.types import DecodeRequest, SamplingParams

BATCH_SIZES = (1, 8)
Ids = tuple[int, ...]


class PauseObserver(SilentObserver):
    """Keeps every swap pause."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []

    def swap_pause(self, seconds: float) -> None:
        """See EngineObserver."""
        self.pauses_s.append(seconds)


@dataclass(frozen=True, slots=True)
class Subject:
    """An open engine and what watches it."""

    config: DviConfig
    opened: OpenEngine
    pauses: PauseObserver
    numbers: Iterator[int]  # shared by all of a bench

    @property
    def engine(self) -> Engine:
        """The engine."""
        return self.opened.engine

    def request(self, prompt: Ids, params: SamplingParams, *, speculation: bool) -> DecodeRequest:
        """A logged request with an id of its own."""
        name = f"bench-{next(self.numbers)}"
        return DecodeRequest(name, prompt, params, speculation=speculation)


@dataclass(frozen=True, slots=True)
class EngineShape:
    """Which engine a part wants."""

    drafter: str  # kind
    num_rows: int
    adaptive: bool = True  # False: always decoding.draft_len proposals
    max_context_len: int | None = None  # None: as configured; else at most that
    prefix_scope: str = "off"  # a prompt that comes again is read again


class Bench:
    """A context manager; opens on first use, closes everything at its end. One thread."""

    def __init__(self, config: DviConfig, run_dir: Path) -> None:
        self.config = config
        self.run_dir = run_dir
        self.stop = Stop()
        self._numbers = itertools.count()
        self._stack = ExitStack()
        self._loaded: Loaded | None = None
        self._costs: CostProfile | None = None
        self._store: ReplayStore | None = None
        self._writer: TraceWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()
        for path in self.run_dir.glob("replay.sqlite*"):  # throw-away state; the log stays
            path.unlink()
        for name in ("adapters", "trainer", "staging", "int8"):
            shutil.rmtree(self.run_dir / name, ignore_errors=True)

    def loaded(self) -> Loaded:
        """Target and tokenizer. Raises ValueError with one line for a model that is refused."""
        if self._loaded is None:
            self._loaded = load_model(self.config)
        return self._loaded

    @property
    def store_url(self) -> str:
        """Of the store that ``store`` opens."""
        return f"sqlite:///{self.run_dir / 'replay.sqlite'}"

    def store(self) -> ReplayStore:
        """Where the engines' traces go."""
        if self._store is None:
            self._store = self._stack.enter_context(open_store(self.store_url, self.config.replay))
            self._writer = self._stack.enter_context(TraceWriter(self._store, self.config.replay))
        return self._store

    def drafts(self) -> list[str]:
        """The kinds of drafter that are compared: the configured one last, before it its sources
        if ``bench.sources``."""
        kind = self.config.drafter.kind
        if kind == "none":
            return []
        has_sources = kind == "auto" and self.config.bench.sources
        return [*([self.config.drafter.learned, "memory"] if has_sources else []), kind]

    @contextmanager
    def engine(self, shape: EngineShape) -> Iterator[Subject]:
        """An engine of its own, with empty memory and untouched estimates; all share the target.

        A draft that learns starts from ``bench.adapters``. Raises ValueError with one line.
        """
        if self._costs is None and shape.adaptive and self.config.decoding.adaptive:
            self._costs = self._open(EngineShape(self.config.drafter.kind, max(BATCH_SIZES))).costs
        pauses = PauseObserver()
        subject = Subject(self._config(shape), self._open(shape, pauses), pauses, self._numbers)
        if shape.drafter not in ("none", "memory") and self.config.bench.adapters is not None:
            load_version(subject, Path(self.config.bench.adapters), None)
        yield subject

    def _config(self, shape: EngineShape) -> DviConfig:
        config = self.config
        adaptive = shape.adaptive and config.decoding.adaptive
        most = shape.max_context_len or config.serving.max_context_len
        return dataclasses.replace(
            config,
            drafter=dataclasses.replace(config.drafter, kind=shape.drafter),
            decoding=dataclasses.replace(
                config.decoding, adaptive=adaptive, prefix_scope=shape.prefix_scope
            ),
            serving=dataclasses.replace(
                config.serving,
                max_batch_size=shape.num_rows,
                max_context_len=min(most, config.serving.max_context_len),
            ),
        )

    def _open(self, shape: EngineShape, pauses: PauseObserver | None = None) -> OpenEngine:
        self.store()
        assert self._writer is not None
        outlets = Outlets(trace_sink=self._writer.offer, observer=pauses or PauseObserver())
        return engine_on(self.loaded(), self._config(shape), outlets, self._costs)


def load_version(subject: Subject, folder: Path, version: int | None) -> None:
    """Draft with a version of a registry folder; None is its live one."""
    registry = Registry(folder)
    if version is None:
        version = registry.current()
    if version == 0:
        raise ValueError(f"bench.adapters: no live version in {folder}")
    drafter = subject.engine.parts.drafter
    drafter.load(drafter.prepare(registry.read(version)))
