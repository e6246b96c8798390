"""Measuring a cost profile: every pass the planner may choose, in turns, on this machine.

Owns the clock of it and the file that remembers the result; does not know acceptance.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dvi.config import DecodingConfig
from dvi.config.home import dvi_home
from dvi.decoding.costs import FAR_OFF, BatchCosts, CostProfile, Point, load_costs
from dvi.drafting import Drafter, DraftRequest
from dvi.modeling.buckets import Buckets
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Planner, Segment
from dvi.modeling.target import TargetModel
from dvi.sampling.choice import host_rows
from dvi.types import SamplingParams

logger = logging.getLogger(__name__)

# Where a row is measured: some way into a context, as most rounds are.
MEASURED_POSITION = 200
TURNS = 3  # after one unmeasured call each; the least is kept: what disturbs only ever adds
MOST_TURNS = 9  # while a turn still finds a call faster by more than SETTLED, the machine is busy
SETTLED = 0.1
MEASURED_BATCHES = (1, 2, 4, 8, 16, 32)
# One row is measured closely: that is where the crossing from plain to packed matrices lies.
ONE_ROW_WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)
WIDTHS = (1, 2, 4, 9, 17, 33)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far a profile reaches."""

    num_rows: int
    max_draft_len: int

    def batches(self) -> list[int]:
        """Sessions in rounds, up to all rows."""
        return sorted(
            {batch for batch in MEASURED_BATCHES if batch < self.num_rows} | {self.num_rows}
        )

    def widths(self, batch: int) -> list[int]:
        """Positions a session, up to the longest proposal and the token before it."""
        last = self.max_draft_len + 1
        table = ONE_ROW_WIDTHS if batch == 1 else WIDTHS
        return sorted({width for width in table if width < last} | {last})


def profile_from_config(
    config: DecodingConfig,
    target: TargetModel,
    drafter: Drafter | None,
    bounds: Bounds,
    *,
    clock: Callable[[], float],
    machine: str,
    buckets: Buckets | None = None,
) -> CostProfile:
    """The profile of the configured file, as it is; else what ``machine`` costs now.

    ``machine`` is ``machine_fingerprint`` of all that decides the times. What was remembered of it
    is taken where a few timed passes still agree, and measured again where they do not, because
    either time the machine may have been busy. Remembering is optional: where nothing can be
    written, the next start measures again.
    """
    if config.cost_profile is not None:
        return load_costs(Path(config.cost_profile).expanduser())
    path = remembered_path(machine)
    known = None
    with contextlib.suppress(ValueError):
        known = load_costs(path)
    if known is not None:
        off = how_far_off(known, target, drafter, bounds, clock, buckets=buckets)
        if off <= FAR_OFF:
            return known
        logger.warning("%s is off by a factor of %.1f; measuring again", path, off)
    logger.info("measuring what passes cost here, once: seconds, or minutes on a busy machine")
    profile = measure_costs(target, drafter, bounds, clock, buckets=buckets)
    width = bounds.max_draft_len + 1
    logger.info(
        "measured: a pass of 1 position %.1f ms, %d positions %.1f ms, a draft step %.1f ms",
        1e3 * profile.pass_s(1, 1),
        width,
        1e3 * profile.pass_s(1, width),
        1e3 * profile.draft_s(1),
    )
    _remember(profile, path)
    return profile


def remembered_path(machine: str) -> Path:
    """Where the measurement of a machine is kept."""
    return dvi_home() / "cache" / f"costs-{machine}.json"


def forget_costs(machine: str) -> None:
    """Measure again at the next start: steps are far faster than what was measured."""
    logger.warning("the measured cost profile is too slow; the next start measures again")
    with contextlib.suppress(OSError):
        remembered_path(machine).unlink()


def how_far_off(
    known: CostProfile,
    target: TargetModel,
    drafter: Drafter | None,
    bounds: Bounds,
    clock: Callable[[], float],
    *,
    buckets: Buckets | None = None,
) -> float:
    """Largest ratio, either way, of recorded times of one session to those of some passes now."""
    few = replace(bounds, num_rows=1)
    widths = sorted({1, bounds.max_draft_len + 1})
    cells = [(1, width) for width in widths]
    seen = timed_costs(target, drafter, few, cells, clock, buckets=buckets)
    times = [(known.pass_s(1, width), seen.pass_s(1, width)) for width in widths]
    times.append((known.draft_s(1), seen.draft_s(1)))
    pairs = [pair for pair in times if min(pair) > 0]
    return max(max(before, now) / min(before, now) for before, now in pairs)


def machine_fingerprint(system: str, draft: str, bounds: Bounds) -> str:
    """Short hash of target, draft, machine, threads and bounds."""
    parts = (
        system,
        draft,
        platform.machine(),
        processor_name(),
        os.cpu_count(),
        torch.get_num_threads(),
        bounds,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def processor_name() -> str:
    """Model of the processor; where the system does not tell, what Python knows."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def measure_costs(
    target: TargetModel,
    drafter: Drafter | None,
    bounds: Bounds,
    clock: Callable[[], float],
    *,
    buckets: Buckets | None = None,
) -> CostProfile:
    """Time passes and draft steps on a cache of their own; seconds. Before the engine starts.

    Uses the drafter's first rows and releases them; what was written is overwritten by any prompt.
    ``drafter`` is the learned one, None where there is none.
    """
    cells = [(batch, width) for batch in bounds.batches() for width in bounds.widths(batch)]
    return timed_costs(target, drafter, bounds, cells, clock, buckets=buckets)


def timed_costs(
    target: TargetModel,
    drafter: Drafter | None,
    bounds: Bounds,
    cells: Sequence[tuple[int, int]],
    clock: Callable[[], float],
    *,
    buckets: Buckets | None = None,
) -> CostProfile:
    """Of some (batch, positions a session), batches ascending; see ``measure_costs``."""
    batches = sorted({batch for batch, _ in cells})
    length = MEASURED_POSITION + bounds.max_draft_len + 1
    cache = measuring_cache(target, bounds.num_rows, length, buckets)
    calls: list[Callable[[], object]] = [
        partial(forward, target, cache, *cell, plans=buckets) for cell in cells
    ]
    if drafter is not None and bounds.max_draft_len:
        calls += [partial(drafter.propose, draft_requests(batch), cache) for batch in batches]
    with torch.inference_mode():
        seconds = time_calls(calls, clock)
    passes = dict(zip(cells, seconds, strict=False))
    steps = dict(zip(batches, seconds[len(cells) :] or [0.0] * len(batches), strict=True))
    if drafter is not None:
        for row in range(bounds.num_rows):
            drafter.release(row)
    return CostProfile(
        tuple(
            BatchCosts(
                batch,
                never_dearer_than_wider(
                    [(one * width, passes[one, width]) for one, width in cells if one == batch]
                ),
                steps[batch],
            )
            for batch in batches
        )
    )


def measuring_cache(
    target: TargetModel, num_rows: int, length: int, buckets: Buckets | None
) -> KvCache:
    """Room for passes over so many rows and positions; with ``buckets`` the one they are for."""
    num_layers = target.spec.num_layers
    if buckets is None:
        return target.new_cache(num_layers, num_rows, length)
    return target.new_cache(num_layers, buckets.room.num_rows, buckets.room.capacity)


def forward(
    target: TargetModel, cache: KvCache, batch: int, width: int, plans: Planner | None = None
) -> None:
    """A whole target pass over ``width`` positions of each of ``batch`` rows, up to logits in host
    memory, where tokens are chosen."""
    segments = [Segment(row, MEASURED_POSITION, (0,) * width) for row in range(batch)]
    plan = (plans or target).plan(segments)
    hidden = target.deep(target.shallow(plan, cache), plan, cache)
    host_rows(target.logits(plan.real(hidden)))


def draft_requests(batch: int) -> list[DraftRequest]:
    """One proposal for each of ``batch`` rows."""
    params = SamplingParams(max_tokens=2, temperature=0.0)
    return [DraftRequest(row, MEASURED_POSITION, 0, 1, params) for row in range(batch)]


def time_calls(calls: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """Least seconds of each call, taken in turns so that a slow moment hits all alike.

    More turns than TURNS are taken while they still find a call much faster than before.
    """
    least_s = [math.inf] * len(calls)
    for turn in range(MOST_TURNS + 1):
        settled = True
        for index, call in enumerate(calls):
            start_s = clock()
            call()
            seconds = clock() - start_s
            if turn and seconds < least_s[index]:
                settled = settled and seconds >= least_s[index] * (1 - SETTLED)
                least_s[index] = seconds
        if settled and turn >= TURNS:
            break
    return least_s


def never_dearer_than_wider(points: Sequence[Point]) -> tuple[Point, ...]:
    """Each pass at most as dear as every wider one, to which it could be padded: what is above that
    is disturbance. A crossing that makes a wider pass cheaper (plain to packed matrices) is lost
    with it, which costs nothing: the wider pass is still there to be chosen."""
    cleaned: list[Point] = []
    least_s = math.inf
    for positions, seconds in reversed(points):
        least_s = min(least_s, seconds)
        cleaned.append((positions, least_s))
    return tuple(reversed(cleaned))


def _remember(profile: CostProfile, path: Path) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.save(path)
