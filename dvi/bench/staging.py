"""The part `staging`: what a running answer feels of new versions while the trainer learns.

Owns the turns of staging, done as the server's watcher does it, and which rounds were beside one;
the trainer is the server's own process on the bench's traces. Does not know what a version learned.
"""

from __future__ import annotations

import gc
import itertools
import logging
import statistics
import sys
import time
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dvi.bench.bench import Bench, EngineShape, Subject
from dvi.bench.part import Part, Section
from dvi.bench.prompts import narrow_mix
from dvi.bench.race import How
from dvi.bench.rows import empty, fill
from dvi.bench.runners import EngineRunner
from dvi.bench.stats import quantile
from dvi.bench.swaps import NUM_VERSIONS, pause_data, pause_line, random_adapters
from dvi.bench.ways import WAYS
from dvi.config.io import dump_config
from dvi.drafting.factory import DRAFTERS
from dvi.drafting.ground import learned_kind
from dvi.modeling.threads import Unhurried, set_thread_modes
from dvi.registry import Adapter
from serving.main import SWITCH_INTERVAL_S, keep_what_is_loaded
from serving.supervisor import Supervisor, trainer_command, trainer_environment
from serving.trainer_status import TrainerStatusReader

log = logging.getLogger(__name__)

QUIET_ROUNDS = 10  # between two stagings: the median is that of rounds beside none
TRAINS_WITHIN_S = 120.0  # a process that starts where nobody else wants the CPU
DRAFT = next(way for way in WAYS if way.name == "draft")
Span = tuple[float, float]  # seconds: began, ended


@dataclass(frozen=True, slots=True)
class Watched:
    """Rounds of one request after the other, and the stagings meanwhile."""

    rounds: Sequence[Span]
    stagings: Sequence[Span]  # from the first look at a version until it stood in line
    stolen: Container[int] = ()  # rounds, by index, in which the host took a core away


def watch(
    subject: Subject, adapters: Sequence[Adapter], is_enough: Callable[[int], bool]
) -> Watched:
    """Decode with fixed draft length; stage in a thread until so many stagings are enough.

    The round after the last one makes its exchange.
    """
    prompts = narrow_mix(subject.opened.tokenizer, 1)
    turns = itertools.cycle(adapters)
    rounds: list[Span] = []
    stagings: list[Span] = []
    staging: Future[Span] | None = None
    stolen: set[int] = set()
    num_quiet = 0  # rounds since the last staging
    with ThreadPoolExecutor(1, initializer=set_thread_modes, initargs=(1,)) as pool:
        while not is_enough(len(stagings)):
            names = fill(subject, DRAFT, prompts, subject.config.bench.max_tokens)
            is_running = True
            while is_running and not is_enough(len(stagings)):
                if staging is None and num_quiet >= QUIET_ROUNDS:
                    staging = pool.submit(_stage, subject, next(turns))
                elif staging is not None and staging.done():
                    stagings.append(staging.result())
                    staging, num_quiet = None, 0
                before = stolen_ticks()
                start_s = time.perf_counter()
                is_running = subject.engine.step().num_ended == 0
                rounds.append((start_s, time.perf_counter()))
                if stolen_ticks() > before:
                    stolen.add(len(rounds) - 1)
                num_quiet += staging is None
            empty(subject, names)
    return Watched(rounds, stagings, stolen)


def _stage(subject: Subject, adapter: Adapter) -> Span:
    start_s = time.perf_counter()
    with Unhurried():
        subject.engine.slot.drop_replaced()
        subject.engine.slot.stage(subject.engine.parts.drafter.prepare(adapter))
    return start_s, time.perf_counter()


def stolen_ticks(stat: Path = Path("/proc/stat")) -> int:
    """Time that the host of a virtual machine has kept its cores to itself, hundredths of a second.

    0 where no system tells.
    """
    try:
        return int(stat.read_text(encoding="ascii").split()[8])  # user nice ... softirq steal
    except (OSError, ValueError, IndexError):
        return 0


def gaps_ms(watched: Watched) -> tuple[list[float], list[float]]:
    """Milliseconds of the rounds beside a staging, and of the others.

    The round that begins after a staging is beside it: it makes the exchange. Rounds in which the
    host took a core away say nothing of either.
    """
    beside: list[float] = []
    alone: list[float] = []
    before = watched.rounds[0]
    for index, one in enumerate(watched.rounds):
        touched = any(before[0] < end and begin < one[1] for begin, end in watched.stagings)
        if index not in watched.stolen:
            (beside if touched else alone).append(1e3 * (one[1] - one[0]))
        before = one
    return beside, alone


@contextmanager
def _trainer(bench: Bench) -> Iterator[TrainerStatusReader]:
    """The trainer's process, busy until the end: the traces pay for more steps than it can make.

    Raises ValueError where it makes none.
    """
    folder, config = bench.run_dir / "staging", bench.config
    told = replace(
        config,
        state_dir=str(folder),
        replay=replace(config.replay, url=bench.store_url, log_content=True),
        registry=replace(config.registry, path=None),
        tracking=replace(config.tracking, kind="none"),
        trainer=replace(config.trainer, steps_per_trace=1e6),
    )
    dump_config(told, folder / "trainer.json")
    status = TrainerStatusReader(folder / "trainer" / "status.json")
    command = trainer_command(folder / "trainer.json")
    with Supervisor(command, trainer_environment(config.trainer.num_threads)):
        deadline = time.monotonic() + TRAINS_WITHIN_S
        while not status.read().steps:
            if time.monotonic() > deadline:
                raise ValueError(f"the trainer made no step in {TRAINS_WITHIN_S:.0f} s")
            time.sleep(0.1)
        yield status


@contextmanager
def _as_served() -> Iterator[None]:
    """The modes of a serving process that decide how its threads share the interpreter."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_what_is_loaded()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval_s)


def measure(bench: Bench) -> Section:
    """Nothing to stage where nothing is learned."""
    kind = learned_kind(bench.config.drafter)
    if DRAFTERS[kind].branch is None:
        return Section({}, notes=[f"staging: drafter={kind} has nothing to stage"])
    with bench.engine(EngineShape(kind, 1, adaptive=False)) as subject:
        served = narrow_mix(subject.opened.tokenizer, 2 * bench.config.trainer.batch_size)
        log.info("staging: %d requests for the trainer", len(served))
        EngineRunner(kind, subject).run(served, How(bench.config.bench.max_tokens, 0.0, 0))
        adapters = random_adapters(subject, NUM_VERSIONS)
        with _trainer(bench) as status, _as_served():
            log.info("staging: %d versions beside decoding", bench.config.bench.swaps)
            first = status.read().steps
            subject.pauses.pauses_s.clear()
            watched = watch(subject, adapters, lambda count: _is_enough(bench, count))
            num_steps = status.read().steps - first
        return section(watched, [1e3 * one for one in subject.pauses.pauses_s], num_steps)


def _is_enough(bench: Bench, count: int) -> bool:
    """One staging is the least that has figures."""
    return count >= bench.config.bench.swaps or (count > 0 and bench.stop.is_asked())


def section(watched: Watched, pauses_ms: Sequence[float], num_steps: int) -> Section:
    """The longest round beside a staging against the median of the others."""
    beside, alone = gaps_ms(watched)
    if not beside or not alone:  # the host left none alone
        beside, alone = gaps_ms(replace(watched, stolen=()))
    median = statistics.median(alone)
    data = {
        "stagings": len(watched.stagings),
        "staging_ms": 1e3 * statistics.median(end - begin for begin, end in watched.stagings),
        "rounds_beside": len(beside),
        "rounds_alone": len(alone),
        "rounds_stolen": len(watched.rounds) - len(beside) - len(alone),
        "median_ms": median,
        "median_beside_ms": statistics.median(beside),
        "p99_beside_ms": quantile(beside, 0.99),
        "p99_alone_ms": quantile(alone, 0.99),
        "longest_beside_ms": max(beside),
        "longest_alone_ms": max(alone),
        "longest_over_median": max(beside) / median,
        "swap_pause": pause_data(pauses_ms),
        "trainer_steps": num_steps,
    }
    notes = [
        f"gap between rounds, trainer running ({num_steps} steps): median {median:.1f} ms, p99 "
        f"{data['p99_alone_ms']:.1f} ms, longest {max(alone):.1f} ms; while a version was staged "
        f"({len(beside)} rounds, {data['staging_ms']:.0f} ms each): median "
        f"{data['median_beside_ms']:.1f} ms, p99 {data['p99_beside_ms']:.1f} ms, longest "
        f"{max(beside):.1f} ms, {data['longest_over_median']:.2f} of the median; "
        f"{data['rounds_stolen']} rounds left out, in which the host took a core away",
        f"trainer running, {pause_line(pauses_ms)}",
    ]
    return Section(data, notes=notes)


STAGING = Part("staging", "rounds beside the staging of versions, trainer running", measure, False)
