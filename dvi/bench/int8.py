"""The part `int8`: the 8-bit target beside the float one, on the narrow stream, in one race.

Owns the second target; every answer of the 8-bit target is compared with its own plain decoding.
"""

from __future__ import annotations

import dataclasses
import statistics
from contextlib import ExitStack

from dvi.bench.bench import BATCH_SIZES, Bench
from dvi.bench.cells import CELLS, cells_section, run_cell
from dvi.bench.check import own_bound
from dvi.bench.figures import Figures
from dvi.bench.part import Part, Section
from dvi.bench.prompts import mixed, narrow_items
from dvi.bench.runners import engine_runners
from dvi.bench.stream import warm_up

FLOAT = "plain float"


def measure(bench: Bench) -> Section:
    """Greedy, one prompt at a time, after the first requests of each domain."""
    config = bench.config
    if config.model.quantization != "none":
        return Section({}, notes=["int8: model.quantization=none is what it is compared with"])
    tokenizer = bench.loaded().tokenizer
    first, count = config.bench.warm_requests, config.bench.num_prompts
    warm = narrow_items(tokenizer, 0, first) if first else []
    items = narrow_items(tokenizer, first, count)
    with ExitStack() as stack:
        other = stack.enter_context(_int8(bench))
        (plain,) = stack.enter_context(engine_runners(bench, [], 1, items))
        kinds = other.drafts()[-1:]
        ours = stack.enter_context(engine_runners(other, kinds, max(BATCH_SIZES), [*warm, *items]))
        notes = warm_up(other, ours, mixed(warm), 0.0) if warm else []
        result = run_cell(
            other,
            [*ours, dataclasses.replace(plain, name=FLOAT)],
            items,
            CELLS[0],
            checked=kinds,
            bound=own_bound(other.loaded().target),
        )
    section = cells_section("int8 target, narrow stream", [result])
    if section.failure:
        return section
    over = over_float(result.found[-1])
    data = {**section.data, "plain_over_float": over}
    notes = [*notes, *section.notes, f"plain int8 / plain {config.model.dtype}: {over:.2f}x"]
    return dataclasses.replace(section, data=data, notes=notes)


def _int8(bench: Bench) -> Bench:
    """The same bench on the 8-bit target, in a folder below; ended by the same signal."""
    folder = bench.run_dir / "int8"
    folder.mkdir(exist_ok=True)
    model = dataclasses.replace(bench.config.model, quantization="int8")
    other = Bench(dataclasses.replace(bench.config, model=model), folder)
    other.stop = bench.stop
    return other


def over_float(found: Figures) -> float:
    """Speed of the base of a race over that of ``found``: mean over the groups."""
    return statistics.fmean(1 / one.median for one in found.over_base.values())


INT8 = Part("int8", "the 8-bit target beside the float one, narrow traffic", measure, False)
