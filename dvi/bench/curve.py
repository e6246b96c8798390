"""The part `curve`: what a pass of n positions costs, against reading the weights once.

Owns the limit that follows from the measured bandwidth; does not know acceptance.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from dvi.bench.bench import BATCH_SIZES, Bench, EngineShape
from dvi.bench.part import Grid, Lines, Part, Section
from dvi.bench.profile import bandwidth, settle
from dvi.bench.prompts import narrow_mix
from dvi.bench.stats import Spread, ratios, spread
from dvi.bench.steps import step_ms
from dvi.bench.ways import WAYS
from dvi.decoding.limits import EngineLimits
from dvi.decoding.measure import MEASURED_POSITION, forward, measuring_cache
from dvi.decoding.startup import make_buckets
from dvi.modeling.buckets import Buckets
from dvi.modeling.target import TargetModel

log = logging.getLogger(__name__)

WIDTHS = {1: (1, 2, 3, 4, 5, 7, 9, 17), 8: (1, 2, 3, 5, 9)}
CALLS = 5  # of each pass a turn; the least counts: what disturbs only ever adds


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    start_s = time.perf_counter()
    call()
    settle(device)
    return time.perf_counter() - start_s


@torch.inference_mode()
def _times(
    target: TargetModel, buckets: Buckets | None, repeats: int
) -> dict[tuple[int, int], list[float]]:
    """Milliseconds of each (batch, width), in turns after a first one that warms up."""
    cache = measuring_cache(target, max(WIDTHS), MEASURED_POSITION + 32, buckets)
    cells = [(batch, width) for batch, widths in WIDTHS.items() for width in widths]
    found: dict[tuple[int, int], list[float]] = {cell: [] for cell in cells}
    for repeat in range(repeats + 1):
        for cell in cells:
            call = partial(forward, target, cache, *cell, plans=buckets)
            milliseconds = 1e3 * min(_seconds(call, target.device) for _ in range(CALLS))
            if repeat:
                found[cell].append(milliseconds)
    return found


def measure(bench: Bench) -> Section:
    """Passes of one row and of eight, the engine's plain step, and the limit of both."""
    target, repeats = bench.loaded().target, bench.config.bench.repeats
    num_bytes = target.num_bytes
    speeds = [bandwidth(time.perf_counter, device=target.device) for _ in range(repeats)]
    reach = max(max(widths) for widths in WIDTHS.values())
    limits = EngineLimits(max(WIDTHS), 1, MEASURED_POSITION, max_draft_len=reach - 1)
    found = _times(target, make_buckets(bench.config.decoding, target, limits), repeats)
    with bench.engine(EngineShape("none", 1)) as subject:
        prompts = narrow_mix(bench.loaded().tokenizer, 1)
        steps = [step_ms(subject, WAYS[0], prompts) for _ in range(repeats)]
    limit = 1e3 * num_bytes / max(speeds)  # ms
    passes = {cell: spread(values) for cell, values in found.items()}
    growth = {cell: ratios(values, found[cell[0], 1]) for cell, values in found.items()}
    reached = limit / spread(steps).median
    data = {
        "weights_bytes": num_bytes,
        "bandwidth_bytes_per_s": max(speeds),
        "limit_ms": limit,
        "plain_step_ms": dataclasses.asdict(spread(steps)),
        "limit_over_plain_step": reached,
        "passes": [_row(cell, passes[cell], growth[cell], limit) for cell in passes],
    }
    note = (
        f"reading the weights ({num_bytes / 1e6:.0f} MB) takes {limit:.1f} ms at "
        f"{max(speeds) / 1e9:.1f} GB/s; a plain step of the engine "
        f"{spread(steps).shown(1)} ms: {reached:.2f} of the limit's speed"
    )
    grid = Grid(
        "one pass of the target: n positions a row",
        ("batch", "n", "ms (spread)", "vs n=1", "vs limit"),
        [
            (str(b), str(n), value.shown(1), growth[b, n].shown(2), f"{value.median / limit:.2f}")
            for (b, n), value in passes.items()
        ],
    )
    lines = {
        f"batch {batch}": [(float(n), passes[batch, n].median) for n in WIDTHS[batch]]
        for batch in BATCH_SIZES
    }
    lines["reading the weights"] = [(1.0, limit), (float(reach), limit)]
    return Section(data, [grid], [Lines("one pass", "positions a row", "ms", lines)], [note])


def _row(cell: tuple[int, int], ms: Spread, growth: Spread, limit: float) -> dict[str, object]:
    return {
        "batch_size": cell[0],
        "width": cell[1],
        "ms": dataclasses.asdict(ms),
        "over_one": dataclasses.asdict(growth),
        "over_limit": ms.median / limit,
    }


CURVE = Part("curve", "time of a pass by its width, against reading the weights", measure)
