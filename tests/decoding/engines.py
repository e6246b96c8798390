"""Small engines for the tests of this room: targets from rigs, scripted drafters, a toy alphabet.

Owns no assertion; does not know serving, stores or files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dvi.config import DecodingConfig
from dvi.decoding import (
    AdapterSlot,
    Controller,
    Engine,
    EngineLimits,
    EngineObserver,
    EngineParts,
    SilentObserver,
)
from dvi.decoding.costs import CostProfile
from dvi.decoding.grammar import GrammarCompiler
from dvi.drafting import Drafter, DraftRequest, DraftWeights, Proposal, draft_branch
from dvi.drafting.factory import make_drafter
from dvi.modeling.buckets import Buckets
from dvi.modeling.cache import KvCache
from dvi.modeling.capture import Capture
from dvi.modeling.plan import Plan, Segment
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter
from dvi.sampling import ChoicePoint, choose
from dvi.types import (
    DecodeRequest,
    Delta,
    FinishReason,
    SamplingParams,
    Source,
    Trace,
    Verification,
)
from tests.decoding.letters import TEXTS, letter_tokenizer
from tests.drafting.rows import config_for, make_adapter, random_tensors

torch.set_num_threads(1)  # tiny products; more threads only wait for each other

LIMITS = EngineLimits(
    num_rows=4,
    max_queue=64,
    max_context_len=160,
    max_draft_len=8,
    prefill_chunk_len=16,
    shared_prefill_chunk_len=8,
    top_ids=8,
)


class LetterDecoder:
    """Text of an id is TEXTS[id]; ids of 60 and more are the first half of a character."""

    def __init__(self, *, skip_special_tokens: bool = True) -> None:
        self._open = ""

    def push(self, token_id: int) -> str:
        """See TextDecoder."""
        text = self._open + TEXTS[token_id]
        if token_id >= 60:
            self._open = text
            return ""
        self._open = ""
        return text

    def flush(self) -> str:
        """What is shown of half a character."""
        return "?" if self._open else ""


class Received:
    """A receiver that keeps the deltas of each request."""

    def __init__(self) -> None:
        self.deltas: dict[str, list[Delta]] = defaultdict(list)

    def __call__(self, delta: Delta) -> None:
        self.deltas[delta.request_id].append(delta)

    def reason(self, name: str) -> FinishReason | None:
        return self.deltas[name][-1].finish_reason if self.deltas[name] else None


class Ticks:
    """A clock that moves by one at each look."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


class ScriptedDrafter:
    """Lets a real drafter work, then proposes what ``script`` says, as a memory would."""

    kind = "scripted"
    expected_acceptance = None

    def __init__(
        self,
        inner: Drafter,
        script: Callable[[DraftRequest], Sequence[int]],
        source: Source = Source.MEMORY,
    ) -> None:
        self.inner = inner
        self.script = script
        self.source = source

    @property
    def adapter_version(self) -> int:
        return self.inner.adapter_version

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        self.inner.observe(hidden, plan)

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:
        self.inner.propose(requests, cache)
        answers = []
        for request in requests:
            ids = tuple(self.script(request))[: request.draft_len]
            source = self.source if ids else Source.TARGET
            answers.append(Proposal(ids, (-1.0,) * len(ids), source, self.adapter_version))
        return answers

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        return self.inner.prepare(adapter)

    def load(self, weights: DraftWeights) -> None:
        self.inner.load(weights)

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        self.inner.share(source_row, row, start, end)

    def release(self, row: int) -> None:
        self.inner.release(row)


@dataclass
class Rig:
    """An engine with what tests look at."""

    engine: Engine
    drafter: Drafter
    slot: AdapterSlot
    traces: list[Trace] = field(default_factory=list)

    def stage(self, kind: str, seed: int, scale: float = 1.0) -> None:
        """Put a random version in line; its number is ``seed``."""
        target = self.engine.parts.target
        layout = draft_branch(config_for(kind, target), target).layout
        adapter = make_adapter(layout, random_tensors(layout, seed, scale), version=seed)
        self.slot.stage(self.drafter.prepare(adapter))


def real_drafter(
    target: TargetModel,
    kind: str,
    limits: EngineLimits,
    buckets: Buckets | None = None,
    **changes: object,
) -> Drafter:
    """A drafter of small ranks at version 0."""
    config = config_for(kind, target, **changes)
    return make_drafter(config, target, limits.num_rows, limits.row_len, buckets=buckets)


def make_buckets(target: TargetModel, capture: Capture, limits: EngineLimits = LIMITS) -> Buckets:
    """For the rows of an engine of these limits."""
    width = limits.max_draft_len + 1
    return Buckets(target, limits.num_rows, limits.row_len, width, capture)


def make_rig(
    target: TargetModel,
    drafter: Drafter | str = "block",
    *,
    draft_len: int = 4,
    limits: EngineLimits = LIMITS,
    decoding: DecodingConfig | None = None,
    costs: CostProfile | None = None,
    observer: EngineObserver | None = None,
    verification: Verification = Verification.COUPLED,
    prefix_scope: str | None = None,
    buckets: Buckets | None = None,
) -> Rig:
    """An engine whose clocks tick and whose traces are kept in a list."""
    if isinstance(drafter, str):
        drafter = real_drafter(target, drafter, limits, buckets)
    config = decoding or DecodingConfig(draft_len=draft_len, adaptive=False)
    watch = observer or SilentObserver()
    clock = Ticks()
    slot = AdapterSlot(drafter, clock, watch)
    traces: list[Trace] = []
    parts = EngineParts(
        target=target,
        drafter=drafter,
        slot=slot,
        controller=Controller(config, costs),
        limits=limits,
        make_decoder=LetterDecoder,
        grammars=GrammarCompiler(letter_tokenizer),
        verification=verification,
        prefix_scope=prefix_scope,
        buckets=buckets,
        trace_sink=traces.append,
        system_fingerprint="rig",
        observer=watch,
        clock=clock,
        wall_clock=Ticks(),
    )
    return Rig(Engine(parts), drafter, slot, traces)


def make_request(
    name: str, prompt_ids: Sequence[int], *, draft_len: int | None = None, **sampling: object
) -> DecodeRequest:
    """A request; greedy and of 24 tokens unless told."""
    fields = {"max_tokens": 24, "temperature": 0.0, **sampling}
    return DecodeRequest(name, tuple(prompt_ids), SamplingParams(**fields), max_draft_len=draft_len)


def with_sampling(request: DecodeRequest, **changes: object) -> DecodeRequest:
    """The same request with other sampling fields."""
    return replace(request, sampling=replace(request.sampling, **changes))


def reference_tokens(target: TargetModel, request: DecodeRequest) -> tuple[int, ...]:
    """Output ids by one whole forward a token, no cache reused; stops at max_tokens only."""
    tokens = list(request.prompt_ids)
    most = len(tokens) + request.sampling.max_tokens
    cache = target.new_cache(target.spec.num_layers, 1, most)  # overwritten from 0 each time
    for _ in range(request.sampling.max_tokens):
        with torch.inference_mode():
            plan = target.plan([Segment(0, 0, tuple(tokens))])
            hidden = target.deep(target.shallow(plan, cache), plan, cache)
            logits = target.logits(hidden[-1:])
        tokens += choose(logits, [ChoicePoint(request.sampling, len(tokens))])
    return tuple(tokens[len(request.prompt_ids) :])
