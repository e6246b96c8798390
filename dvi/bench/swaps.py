"""The part `swaps`: how long a running request pauses while another adapter is put in.

Owns the random adapters, which go through the same checks and the same merge as trained ones.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

import torch

from dvi.bench.bench import Bench, EngineShape, Subject
from dvi.bench.part import Json, Part, Section
from dvi.bench.prompts import narrow_mix
from dvi.bench.rows import empty, fill
from dvi.bench.stats import quantile
from dvi.bench.ways import Way
from dvi.drafting import DraftWeights
from dvi.drafting.factory import DRAFTERS, draft_branch
from dvi.registry.manifest import Adapter, Manifest

NUM_VERSIONS = 4  # that take turns; each holds a merged block
SCALE = 0.01  # of the normal values; any finite size costs the same


def random_adapters(subject: Subject, count: int) -> list[Adapter]:
    """``count`` versions that fit the drafter, as they are read from a registry."""
    parts = subject.engine.parts
    layout = draft_branch(subject.config.drafter, parts.target).layout
    generator = torch.Generator().manual_seed(0)
    adapters = []
    for version in range(1, count + 1):
        tensors = {
            name: SCALE * torch.randn(shape, generator=generator, dtype=layout.dtype)
            for name, shape in layout.shapes().items()
        }
        manifest = Manifest(
            version=version,
            parent=0,
            base_fingerprint=subject.opened.base_fingerprint,
            drafter=layout.drafter,
            sha256={},
            metrics={},
            checkpoint_step=0,
            rows_trained=0,
            created_s=0.0,
        )
        adapters.append(Adapter(version, tensors, {"alpha_pattern": layout.alphas()}, manifest))
    return adapters


def swap_pauses_ms(subject: Subject, versions: list[DraftWeights], count: int) -> list[float]:
    """Pause of each of ``count`` exchanges, one before every step of a running request."""
    engine = subject.engine
    prompts = narrow_mix(subject.opened.tokenizer, 1)
    rng = random.Random(0)
    left = count
    subject.pauses.pauses_s.clear()
    way = Way("draft", speculation=True)
    while left > 0:
        names = fill(subject, way, prompts, subject.config.bench.max_tokens)
        running = True
        while running and left > 0:
            engine.slot.stage(rng.choice(versions))
            running = engine.step().num_ended == 0
            left -= 1
        empty(subject, names)
    return [1e3 * pause_s for pause_s in subject.pauses.pauses_s]


def measure(bench: Bench) -> Section:
    """Nothing to swap where nothing is learned."""
    kind = bench.config.drafter.kind
    if DRAFTERS[kind].branch is None:
        return Section({}, notes=[f"swaps: drafter={kind} has nothing to swap"])
    with bench.engine(EngineShape(kind, 1)) as subject:
        prepare = subject.engine.parts.drafter.prepare
        versions = [prepare(one) for one in random_adapters(subject, NUM_VERSIONS)]
        pauses = swap_pauses_ms(subject, versions, bench.config.bench.swaps)
    return Section(pause_data(pauses), notes=[pause_line(pauses)])


def pause_data(pauses_ms: Sequence[float]) -> Json:
    """For bench.json."""
    return {
        "count": len(pauses_ms),
        "median_ms": statistics.median(pauses_ms),
        "p99_ms": quantile(pauses_ms, 0.99),
        "max_ms": max(pauses_ms),
    }


def pause_line(pauses_ms: Sequence[float]) -> str:
    """For people."""
    data = pause_data(pauses_ms)
    return (
        f"swap pause: median {data['median_ms']:.3f} ms, p99 {data['p99_ms']:.3f} ms, "
        f"largest {data['max_ms']:.3f} ms over {data['count']} swaps"
    )


SWAPS = Part("swaps", "pauses of a running request while adapters are exchanged", measure)
