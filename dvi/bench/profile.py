"""Where the time of one target pass goes, and the limit that the weights' bytes set.

`python -m dvi.bench.profile [model.quantization=int8 ...]` prints the table of
docs/profile.md. Owns what is timed; does not know requests, drafts or answers.
Letters: B rows (requests) of a pass, W positions a row.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dvi.bench.stats import quantile
from dvi.config import DviConfig
from dvi.config.cores import decode_threads
from dvi.launch import LaunchRequest
from dvi.launch.compose import compose_config
from dvi.modeling.cache import KvCache
from dvi.modeling.loading import load_target
from dvi.modeling.plan import Plan, Segment
from dvi.modeling.resolve import resolve_model_path
from dvi.modeling.target import TargetModel
from dvi.modeling.threads import set_thread_modes

POSITION = 200  # some way into a context, as most rounds are
CELLS = ((1, 1), (1, 2), (1, 3), (1, 5), (1, 9), (8, 1), (8, 5))  # (B, W)
TURNS = 9  # of all cells one after the other, so that a slow moment hits all alike
PROBE_BYTES = 400 * 2**20  # more than the caches of a processor hold
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Undisturbed milliseconds of one pass: the tenth percentile over turns."""

    batch: int  # B
    width: int  # W
    whole_ms: float
    plan_ms: float
    matrices_ms: float  # the layers' matrices alone
    head_ms: float

    @property
    def rest_ms(self) -> float:
        """Norms, rotation, attention, cache writes, and Python between them."""
        return self.whole_ms - self.plan_ms - self.matrices_ms - self.head_ms


def profile_passes(
    target: TargetModel, cells: Sequence[tuple[int, int]], turns: int, clock: Clock
) -> list[PassTimes]:
    """Time every cell; one warm-up, then ``turns`` of all."""
    rows = max(batch for batch, _ in cells)
    length = POSITION + max(width for _, width in cells)
    cache = target.new_cache(target.spec.num_layers, rows, length)
    jobs = [job for cell in cells for job in _jobs(target, cache, *cell)]
    with torch.inference_mode():
        times: list[list[float]] = [[] for _ in jobs]
        for turn in range(turns + 1):
            for job, found in zip(jobs, times, strict=True):
                start_s = clock()
                job()
                settle(target.device)
                if turn:
                    found.append((clock() - start_s) * 1e3)
    least = [quantile(found, 0.1) for found in times]
    return [
        PassTimes(batch, width, *least[4 * index : 4 * index + 4])
        for index, (batch, width) in enumerate(cells)
    ]


def _jobs(
    target: TargetModel, cache: KvCache, batch: int, width: int
) -> tuple[Callable[[], object], ...]:
    """Whole pass, plan, the layers' matrices, the head."""
    segments = [Segment(row, POSITION, (0,) * width) for row in range(batch)]
    shape = (batch * width, target.spec.hidden_size)
    hidden = torch.ones(shape, dtype=target.dtype, device=target.device)

    def whole() -> Tensor:
        plan: Plan = target.plan(segments)
        return target.logits(target.deep(target.shallow(plan, cache), plan, cache))

    return (
        whole,
        partial(target.plan, segments),
        partial(_run_matrices, target, batch * width),
        partial(target.logits, hidden),
    )


def _run_matrices(target: TargetModel, num_rows: int) -> None:
    """Every product of every layer on inputs of its size."""
    spec = target.spec
    wide = torch.ones(num_rows, max(spec.intermediate_size, spec.num_heads * spec.head_dim))
    wide = wide.to(target.device, target.dtype)
    inputs = (spec.hidden_size, spec.num_heads * spec.head_dim)
    given = [wide[:, :size].contiguous() for size in (*inputs, spec.hidden_size)]
    given.append(wide[:, : spec.intermediate_size].contiguous())
    for index in range(spec.num_layers):
        for matrix, x in zip(target.layer(index).matrices, given, strict=True):
            matrix(x)


def settle(device: torch.device) -> None:
    """Return when all work given to ``device`` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bandwidth(
    clock: Clock, num_bytes: int = PROBE_BYTES, device: torch.device | None = None
) -> float:
    """Bytes a second that all threads read from memory: the best of five sums of a large tensor."""
    probe = torch.ones(num_bytes // 4, device=device)
    best_s = float("inf")
    for _ in range(5):
        start_s = clock()
        probe.sum().item()  # a GPU has ended then
        best_s = min(best_s, clock() - start_s)
    return probe.nbytes / best_s


def table(times: Sequence[PassTimes], limit_ms: float) -> list[str]:
    """Lines of the table; ``limit_ms`` is the time of reading the weights once."""
    head = f"{'rows':>4} {'positions':>9} {'pass ms':>8} {'/ limit':>8} {'matrices':>9} {'head':>6}"
    lines = [f"{head} {'plan':>6} {'rest':>6}"]
    lines += [
        f"{one.batch:>4} {one.width:>9} {one.whole_ms:>8.1f} {one.whole_ms / limit_ms:>8.2f} "
        f"{one.matrices_ms:>9.1f} {one.head_ms:>6.1f} {one.plan_ms:>6.2f} {one.rest_ms:>6.1f}"
        for one in times
    ]
    return lines


def load(config: DviConfig) -> TargetModel:
    """The target of a config, all layers."""
    return load_target(
        resolve_model_path(config.model),
        config.model,
        config.drafter.exit_layer,
        deterministic=config.decoding.deterministic,
        layers="all",
        max_context_len=config.serving.max_context_len,
    )


def main(overrides: Sequence[str]) -> int:
    """Print the profile of the configured target on this machine."""
    try:
        config = compose_config(LaunchRequest("bench", tuple(overrides)))
        target = load(config)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    set_thread_modes(decode_threads(config.model))
    clock = time.perf_counter
    bytes_per_s = statistics.median(bandwidth(clock) for _ in range(3))
    limit_ms = target.num_bytes / bytes_per_s * 1e3
    print(
        f"{target.num_bytes / 1e6:.0f} MB of weights at {bytes_per_s / 1e9:.1f} GB/s: "
        f"{limit_ms:.1f} ms a pass at least"
    )
    print("\n".join(table(profile_passes(target, CELLS, TURNS, clock), limit_ms)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
