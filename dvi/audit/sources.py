"""What is compared with what: stored answers, or prompts of a file decoded both ways.

Owns the two sources of pairs behind one result; does not judge differences.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dvi.audit.gather import Served, as_served, comparable, newest_traces
from dvi.audit.pairs import Answer, Pair
from dvi.bench.prompts import read_items
from dvi.config import DviConfig
from dvi.config.home import adapters_dir, replay_url
from dvi.decoding.batch import Result, decode_batch
from dvi.decoding.startup import NotDeterministic, OpenEngine, open_engine
from dvi.registry import Registry
from dvi.replay import is_there, open_store
from dvi.types import DecodeRequest, SamplingParams, Trace

log = logging.getLogger(__name__)

_LEAST_CONTEXT = 64


@dataclass(frozen=True, slots=True)
class Compared:
    """All pairs, the engine that gave the plain answers, and the answers that were left out."""

    opened: OpenEngine
    pairs: list[Pair]
    skipped: Counter[str]  # by reason
    deterministic: bool


def read_stored(config: DviConfig) -> list[Trace]:
    """The traces to audit; none where there is no store yet. Creates nothing."""
    url = replay_url(config)
    if not is_there(url):
        return []
    with open_store(url, config.replay) as store:
        return newest_traces(store, config.audit, time.time())


def stored_pairs(config: DviConfig, traces: Sequence[Trace]) -> Compared:
    """Each stored answer beside plain decoding of its request.

    Raises ValueError where this system promises to repeat none of them.
    """
    longest = max(len(trace.prompt_ids) + len(trace.output_ids) for trace in traces)
    config = replace(
        config,
        drafter=replace(config.drafter, kind="none"),
        serving=replace(config.serving, max_context_len=max(longest, _LEAST_CONTEXT)),
    )
    opened, deterministic = _open(config)
    verification = opened.engine.parts.verification
    kept, skipped = comparable(traces, opened.system_fingerprint, verification)
    if not kept:
        raise ValueError(_nothing_to_compare(traces, opened, skipped))
    served = [as_served(trace) for trace in kept]
    results = decode_batch(opened.engine, [one.request for one in served])
    pairs = [_pair(one, result) for one, result in zip(served, results, strict=True)]
    return Compared(opened, pairs, skipped, deterministic)


def prompt_pairs(config: DviConfig, file: Path) -> Compared:
    """Each prompt of the file decoded with the draft in service, always drafting, and plainly."""
    config = replace(config, decoding=replace(config.decoding, adaptive=False))
    if config.audit.temperature > 0 and config.decoding.verification == "rejection":
        raise ValueError(
            "audit.temperature: sampled answers depend on the draft under "
            "decoding.verification=rejection; use coupled, or audit.temperature=0"
        )
    opened, deterministic = _open(config)
    most = config.audit.max_traces
    prompts = [item.ids for item in read_items(file, opened.tokenizer, most)][:most]
    _load_live_version(opened, config)
    requests = [
        DecodeRequest(f"prompt-{number}", prompt, _sampling(config, opened, number), log=False)
        for number, prompt in enumerate(prompts, 1)
    ]
    drafted = decode_batch(opened.engine, requests)
    plain = decode_batch(opened.engine, [replace(one, speculation=False) for one in requests])
    pairs = [
        Pair(request, _answer(one), _answer(other))
        for request, one, other in zip(requests, drafted, plain, strict=True)
    ]
    return Compared(opened, pairs, Counter(), deterministic)


def _open(config: DviConfig) -> tuple[OpenEngine, bool]:
    """The engine, and whether it is deterministic: the fast mode where that cannot be kept."""
    try:
        return open_engine(config), config.decoding.deterministic
    except NotDeterministic as error:
        log.warning("%s: going on in the fast mode", error)
    fast = replace(config, decoding=replace(config.decoding, deterministic=False))
    return open_engine(fast), False


def _load_live_version(opened: OpenEngine, config: DviConfig) -> None:
    registry = Registry(adapters_dir(config))
    version = registry.current()
    if version > 0:
        drafter = opened.engine.parts.drafter
        drafter.load(drafter.prepare(registry.read(version)))
    log.info("drafting with adapter version %d", version)


def _sampling(config: DviConfig, opened: OpenEngine, number: int) -> SamplingParams:
    return SamplingParams(
        max_tokens=config.audit.max_tokens,
        temperature=config.audit.temperature,
        seed=config.run.seed + number,
        end_token_ids=opened.tokenizer.end_token_ids,
    )


def _pair(served: Served, result: Result) -> Pair:
    return Pair(served.request, served.answer, _answer(result))


def _answer(result: Result) -> Answer:
    return Answer(result.token_ids, result.finish_reason)


def _nothing_to_compare(traces: Sequence[Trace], opened: OpenEngine, skipped: Counter[str]) -> str:
    if skipped["rejection_sampled"]:
        return "audit: answers sampled under decoding.verification=rejection depend on the draft"
    newest = traces[0].system_fingerprint
    return (
        f"audit: none of {len(traces)} stored answers is of this system: they have {newest}, this "
        f"is {opened.system_fingerprint}; give model, model.dtype, decoding.deterministic and "
        "decoding.verification of the server that gave them, on its machine and versions"
    )
