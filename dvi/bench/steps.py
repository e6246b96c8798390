"""The part `steps`: milliseconds of a decode step at fixed K, greedy against sampled.

Owns the turns of it; K is fixed so that every step does equal work.
"""

from __future__ import annotations

import dataclasses
import logging
import statistics
import time
from collections.abc import Sequence

from dvi.bench.bench import BATCH_SIZES, Bench, EngineShape, Ids, Subject
from dvi.bench.part import Bars, Grid, Json, Part, Section
from dvi.bench.prompts import narrow_mix
from dvi.bench.rows import empty, fill, tokens_needed
from dvi.bench.stats import Spread, ratios, spread
from dvi.bench.ways import WAYS, Way

log = logging.getLogger(__name__)
Cell = tuple[int, Way]


def step_ms(subject: Subject, way: Way, prompts: Sequence[Ids]) -> float:
    """Median milliseconds of a step while all prompts are in rounds of full width."""
    steps = subject.config.bench.timed_steps
    max_tokens = tokens_needed(subject, prompts, steps)
    longest = max(len(prompt) for prompt in prompts) + max_tokens
    if longest > subject.config.serving.max_context_len:
        raise ValueError(
            f"bench.timed_steps={steps} needs serving.max_context_len of {longest} or more"
        )
    names = fill(subject, way, prompts, max_tokens)
    times = []
    for _ in range(steps):
        start_s = time.perf_counter()
        report = subject.engine.step()
        times.append(time.perf_counter() - start_s)
        assert report.num_rounds == len(prompts)
    empty(subject, names)
    return 1e3 * statistics.median(times)


def measure(bench: Bench) -> Section:
    """All ways at all batch sizes, in turn."""
    kind = bench.config.drafter.kind
    ways = [way for way in WAYS if kind != "none" or not way.speculation]
    cells = [(size, way) for size in BATCH_SIZES for way in ways]
    found: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with bench.engine(EngineShape(kind, max(BATCH_SIZES), adaptive=False)) as subject:
        prompts = narrow_mix(bench.loaded().tokenizer, max(BATCH_SIZES))
        for repeat in range(bench.config.bench.repeats + 1):
            log.info("steps, turn %d of %d", repeat, bench.config.bench.repeats)
            for size, way in cells:
                milliseconds = step_ms(subject, way, prompts[:size])
                if repeat:  # the first turn warms up
                    found[size, way].append(milliseconds)
    return _section(found)


def _section(found: dict[Cell, list[float]]) -> Section:
    """Each way against the greedy one of the same kind, repeat by repeat."""
    greedy = {
        (size, way.speculation): values
        for (size, way), values in found.items()
        if way.temperature == 0
    }
    over = {
        (size, way): ratios(values, greedy[size, way.speculation])
        for (size, way), values in found.items()
    }
    times = {cell: spread(values) for cell, values in found.items()}
    rows = [_row(size, way, times[size, way], over[size, way]) for size, way in found]
    grid = Grid(
        "one decode step (plain: 1 position a row; draft: decoding.draft_len + 1)",
        ("batch", "way", "ms (spread)", "vs greedy"),
        [
            (str(size), way.name, times[size, way].shown(1), over[size, way].shown(3))
            for size, way in found
        ],
    )
    names = list(dict.fromkeys(way.name for _, way in found))
    sizes = list(dict.fromkeys(size for size, _ in found))
    by_name = {(size, way.name): value.median for (size, way), value in times.items()}
    panel = Bars(
        "one decode step",
        "ms",
        [f"batch {size}" for size in sizes],
        {name: [by_name[size, name] for size in sizes] for name in names},
    )
    return Section({"rows": rows}, [grid], [panel])


def _row(size: int, way: Way, ms: Spread, over: Spread) -> Json:
    return {
        "batch_size": size,
        "way": way.name,
        "ms": dataclasses.asdict(ms),
        "over_greedy": dataclasses.asdict(over),
    }


STEPS = Part("steps", "one decode step at fixed K, greedy and sampled", measure, by_default=False)
