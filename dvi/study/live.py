"""The simulation against the engine: the same version, the same prompts, rounds of the same K.

Owns the comparison; does not know how an arm was trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dvi.config import DrafterConfig
from dvi.decoding.batch import Result, decode_batch
from dvi.decoding.startup import Loaded, Outlets, engine_on
from dvi.drafting.auto import sources_of
from dvi.drafting.ground import learned_kind
from dvi.registry import Adapter
from dvi.study.rounds import Counts, count_letters
from dvi.study.simulate import Guess
from dvi.study.sources import Setup, servers
from dvi.types import DecodeRequest, Trace


@dataclass(frozen=True, slots=True)
class Sample:
    """Requests that are decoded again by one version."""

    adapter: Adapter | None
    before: Sequence[Trace]  # what was served before them: a memory knows it
    traces: Sequence[Trace]
    guesses: Sequence[Guess]  # of that version, one a trace


@dataclass(frozen=True, slots=True)
class LiveCheck:
    """Sums over the sample."""

    simulated: Counts
    live: Counts
    num_requests: int
    num_same_answers: int  # the others parted at a near-tie, and their rounds with them


def check_live(loaded: Loaded, setup: Setup, sample: Sample) -> dict[str, LiveCheck]:
    """By name: the draft alone and beside the memory, simulated and by an engine."""
    learned = learned_kind(setup.config.drafter)
    drafters = {
        "neural": replace(setup.config.drafter, kind=learned),
        "auto": replace(setup.config.drafter, kind="auto", learned=learned),
    }
    return {name: _check(loaded, setup, sample, name, own) for name, own in drafters.items()}


def _check(
    loaded: Loaded, setup: Setup, sample: Sample, name: str, drafter: DrafterConfig
) -> LiveCheck:
    server = servers(setup)[name]
    for trace in sample.before:
        server.remember(trace)
    simulated = Counts()
    for trace, guess in zip(sample.traces, sample.guesses, strict=True):
        simulated += count_letters(server.serve(trace, guess))
    results = _decode(loaded, replace(setup, config=replace(setup.config, drafter=drafter)), sample)
    live = Counts()
    for result in results:
        live += Counts(result.counts.rounds, result.counts.judged, result.counts.accepted)
    same = sum(
        result.token_ids == trace.output_ids
        for result, trace in zip(results, sample.traces, strict=True)
    )
    return LiveCheck(simulated, live, len(results), same)


def _decode(loaded: Loaded, setup: Setup, sample: Sample) -> list[Result]:
    """The sample's prompts by the engine of ``setup``."""
    engine = engine_on(loaded, setup.config, Outlets()).engine
    drafter = engine.parts.drafter
    drafter.load(drafter.prepare(sample.adapter))
    memory = sources_of(drafter).memory
    if memory is not None:
        for trace in sample.before:
            memory.remember_trace(trace, "")
    return decode_batch(
        engine,
        [DecodeRequest(one.request_id, one.prompt_ids, one.sampling) for one in sample.traces],
    )
