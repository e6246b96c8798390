"""The simulation against the engine: the same version, the same prompts, rounds of the same K.

Owns the comparison; does not know how an arm was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dvi.config import DviConfig
from dvi.decoding.batch import decode_batch
from dvi.decoding.startup import Loaded, Outlets, engine_on
from dvi.registry import Adapter
from dvi.study.rounds import Counts
from dvi.types import DecodeRequest, Trace


@dataclass(frozen=True, slots=True)
class LiveCheck:
    """Sums over the sample."""

    simulated: Counts
    live: Counts
    num_requests: int
    num_same_answers: int  # the others parted at a near-tie, and their rounds with them


def check_live(
    loaded: Loaded,
    config: DviConfig,
    adapter: Adapter | None,
    traces: Sequence[Trace],
    simulated: Counts,
) -> LiveCheck:
    """Decode the traces' prompts again by the engine of ``config``, whose K must be fixed."""
    assert not config.decoding.adaptive
    engine = engine_on(loaded, config, Outlets()).engine
    drafter = engine.parts.drafter
    drafter.load(drafter.prepare(adapter))
    results = decode_batch(
        engine, [DecodeRequest(one.request_id, one.prompt_ids, one.sampling) for one in traces]
    )
    live = Counts()
    for result in results:
        live += Counts(result.counts.rounds, result.counts.judged, result.counts.accepted)
    same = sum(
        result.token_ids == trace.output_ids for result, trace in zip(results, traces, strict=True)
    )
    return LiveCheck(simulated, live, len(traces), same)
