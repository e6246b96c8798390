"""The part `stream`: traffic of four narrow domains, after the first requests of each.

Owns the warming up: every engine that remembers serves the first ``bench.warm_requests`` of each
domain at the temperature that is measured next, and a draft that learns is trained on their traces.
Each measurement takes the requests that come next, so nothing is answered twice and a memory never
holds the answer that it is measured on.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence

from dvi.bench.bench import BATCH_SIZES, Bench, load_version
from dvi.bench.cells import CELLS, Cell, cells_section, chosen_cells, run_cell
from dvi.bench.check import own_bound
from dvi.bench.part import Part, Section
from dvi.bench.prompts import Item, mixed, narrow_items
from dvi.bench.race import How
from dvi.bench.runners import EngineRunner, engine_runners
from dvi.drafting.factory import DRAFTERS
from dvi.registry import Registry
from trainers.build import Ground
from trainers.inline import train_on

log = logging.getLogger(__name__)

WRITTEN_WITHIN_S = 30.0


def measure(bench: Bench) -> Section:
    """All cells, each on further requests of every domain; greedy ones first."""
    config = bench.config.bench
    tokenizer = bench.loaded().tokenizer
    warm = narrow_items(tokenizer, 0, config.warm_requests) if config.warm_requests else []
    batches = [
        narrow_items(tokenizer, config.warm_requests + i * config.num_prompts, config.num_prompts)
        for i in range(len(CELLS))
    ]
    every = [*warm, *(item for items in batches for item in items)]
    bound = own_bound(bench.loaded().target)
    results, notes = [], []
    warmed = None
    with engine_runners(bench, bench.drafts(), max(BATCH_SIZES), every) as runners:
        for cell in chosen_cells(bench, CELLS):
            items = batches[CELLS.index(cell)]
            own = [one for one in runners if _races(one, cell, _kind(bench))]
            if warm and cell.temperature != warmed:
                notes += warm_up(bench, own, mixed(warm), cell.temperature)
                warmed = cell.temperature
            log.info("narrow stream, %s", cell.name)
            checked = [one.name for one in own[1:]]
            results.append(run_cell(bench, own, items, cell, checked=checked, bound=bound))
    section = cells_section(f"narrow stream after {config.warm_requests} of each domain", results)
    return dataclasses.replace(section, notes=[*notes, *section.notes])


def _races(runner: EngineRunner, cell: Cell, configured: str) -> bool:
    """Each source alone is shown for one greedy stream; elsewhere what is configured."""
    return cell == CELLS[0] or runner.subject.config.drafter.kind in ("none", configured)


def warm_up(
    bench: Bench, runners: Sequence[EngineRunner], items: Sequence[Item], temperature: float
) -> list[str]:
    """Serve ``items`` by every engine that remembers; train on what the configured kind served.

    Training is once, on the first answers. A learned draft alone remembers nothing: it only takes
    the version over.
    """
    how = How(bench.config.bench.max_tokens, temperature, first_seed=0)
    notes = []
    version = None
    for runner in sorted(runners, key=lambda one: one.subject.config.drafter.kind != _kind(bench)):
        kind = runner.subject.config.drafter.kind
        if version is not None and _learns(kind):
            load_version(runner.subject, bench.run_dir / "adapters", version)
        if kind == "none" or (kind == bench.config.drafter.learned and kind != _kind(bench)):
            continue
        log.info("%s serves the first %d requests", runner.name, len(items))
        runner.run([item.ids for item in items], how)
        if kind == _kind(bench) and _learns(kind) and _trains(bench):
            version, note = _train(bench, runner.subject.opened.base_fingerprint, len(items))
            notes.append(note)
            load_version(runner.subject, bench.run_dir / "adapters", version)
    return notes


def _kind(bench: Bench) -> str:
    return bench.config.drafter.kind


def _learns(kind: str) -> bool:
    return DRAFTERS[kind].branch is not None


def _trains(bench: Bench) -> bool:
    """Whether a version is wanted that is not there yet."""
    config = bench.config.bench
    is_there = Registry(bench.run_dir / "adapters").is_there()
    return config.adapters is None and config.train_steps > 0 and not is_there


def _train(bench: Bench, base: str, num_traces: int) -> tuple[int, str]:
    """Train a version on the stored traces; its number and a line about it."""
    steps = bench.config.bench.train_steps
    log.info("training %d steps on the traces of the first requests", steps)
    _wait_for_traces(bench, num_traces)
    config = dataclasses.replace(
        bench.config, trainer=dataclasses.replace(bench.config.trainer, max_steps=steps)
    )
    folder = bench.run_dir / "trainer"
    registry = Registry(bench.run_dir / "adapters", config.registry.keep_versions)
    ground = Ground(bench.loaded().target, base, bench.store(), registry, folder)
    start_s = time.perf_counter()
    trained = train_on(config, ground, lambda done: log.debug("step %d", done.step))
    return trained.version, (
        f"draft trained {trained.num_steps} steps in {time.perf_counter() - start_s:.0f} s on "
        f"{trained.train_rows} traces: alpha on {trained.holdout_rows} held-out ones "
        f"{trained.acceptance_before:.2f} before, {trained.acceptance_after:.2f} after"
    )


def _wait_for_traces(bench: Bench, num_traces: int) -> None:
    deadline = time.monotonic() + WRITTEN_WITHIN_S
    while bench.store().stats().rows < num_traces:
        if time.monotonic() > deadline:
            raise ValueError("the traces of the first requests were not written")
        time.sleep(0.05)


STREAM = Part("stream", "narrow traffic after its first requests, ways side by side", measure)
