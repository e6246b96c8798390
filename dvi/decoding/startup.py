"""From a config to an engine that can decode: model, self-test, drafter, costs.

Owns the order of what happens at start; does not know HTTP, stores or the registry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dvi.config import DecodingConfig, DviConfig
from dvi.decoding.controller import Controller
from dvi.decoding.costs import CostProfile
from dvi.decoding.engine import Engine, EngineParts
from dvi.decoding.grammar import GrammarCompiler
from dvi.decoding.limits import EngineLimits, limits_from_config
from dvi.decoding.measure import (
    Bounds,
    forget_costs,
    machine_fingerprint,
    profile_from_config,
)
from dvi.decoding.observer import EngineObserver, SilentObserver
from dvi.decoding.pace import Pace
from dvi.decoding.record import TraceSink, drop_trace
from dvi.decoding.slot import AdapterSlot
from dvi.drafting import Drafter
from dvi.drafting.auto import sources_of
from dvi.drafting.factory import make_drafter
from dvi.drafting.ground import draft_fingerprint, learned_kind
from dvi.drift import AcceptanceDrift
from dvi.modeling.buckets import Buckets
from dvi.modeling.capture import CudaCapture
from dvi.modeling.fingerprint import base_fingerprint, system_fingerprint
from dvi.modeling.loading import load_target
from dvi.modeling.resolve import resolve_model_path
from dvi.modeling.selftest import SelfTestReport, self_test
from dvi.modeling.target import TargetModel
from dvi.modeling.tokenizer import Tokenizer
from dvi.types import Verification

logger = logging.getLogger(__name__)


class NotDeterministic(ValueError):
    """``decoding.deterministic=true`` where this machine cannot keep the promise."""


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where an engine's traces and measurements go, and the clocks it reads."""

    trace_sink: TraceSink = drop_trace
    observer: EngineObserver = field(default_factory=SilentObserver)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """An engine at adapter version 0, and what its callers need beside it."""

    engine: Engine
    tokenizer: Tokenizer
    base_fingerprint: str  # what manifests of its adapters must name
    system_fingerprint: str
    costs: CostProfile | None  # None where draft lengths are fixed


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked target on this machine; any number of engines may stand on it, one after another
    or in turns of one thread."""

    path: Path
    target: TargetModel
    tokenizer: Tokenizer


def open_engine(config: DviConfig, outlets: Outlets | None = None) -> OpenEngine:
    """Load the model, check the machine, make the drafter, measure its costs.

    Takes seconds; starts no thread. Raises ValueError with one line for a model that is missing or
    refused, a drafter that does not fit it, and NotDeterministic.
    """
    return engine_on(load_model(config), config, outlets or Outlets())


def load_model(config: DviConfig) -> Loaded:
    """The configured target and its tokenizer; ``open_engine`` says what is raised."""
    path = resolve_model_path(config.model)
    tokenizer = Tokenizer.load(path, config.model.chat_template)
    return Loaded(path, load_checked_target(path, config), tokenizer)


def engine_on(
    loaded: Loaded, config: DviConfig, outlets: Outlets, costs: CostProfile | None = None
) -> OpenEngine:
    """An engine of ``config`` on a target that was loaded with the same model and decoding mode.

    ``costs`` None: measured or remembered, as the config says.
    """
    target, tokenizer = loaded.target, loaded.tokenizer
    base = draft_fingerprint(loaded.path, config)
    # An answer depends on the target alone: its hash must not move with the draft's k and source.
    verification = Verification(config.decoding.verification)
    answers = system_fingerprint(
        target, base_fingerprint(loaded.path, 0, 0), config.model.quantization, verification
    )
    limits = limits_from_config(config.decoding, config.serving, config.replay.top_ids)
    buckets = make_buckets(config.decoding, target, limits)
    drafter = make_drafter(
        config.drafter, target, limits.num_rows, limits.row_len, base, buckets=buckets
    )
    machine = machine_of(config, limits, answers + base)
    if costs is None:
        costs = costs_from_config(
            *(config, target, drafter, limits),
            machine=machine,
            clock=outlets.clock,
            buckets=buckets,
        )
    parts = EngineParts(
        target=target,
        drafter=drafter,
        slot=AdapterSlot(drafter, outlets.clock, outlets.observer),
        controller=Controller(config.decoding, costs, make_pace(config, costs, machine)),
        limits=limits,
        make_decoder=tokenizer.detokenizer,
        grammars=GrammarCompiler(tokenizer.for_grammars),
        verification=verification,
        prefix_scope=config.decoding.prefix_scope,
        buckets=buckets,
        trace_sink=outlets.trace_sink,
        system_fingerprint=answers,
        observer=outlets.observer,
        drift=AcceptanceDrift(config.drift),
        clock=outlets.clock,
        wall_clock=outlets.wall_clock,
    )
    return OpenEngine(Engine(parts), tokenizer, base, answers, costs)


def costs_from_config(
    config: DviConfig,
    target: TargetModel,
    drafter: Drafter,
    limits: EngineLimits,
    *,
    machine: str,
    clock: Callable[[], float],
    buckets: Buckets | None = None,
) -> CostProfile | None:
    """What passes cost, where something depends on it."""
    if not config.decoding.adaptive or drafter.kind == "none":
        return None
    bounds = Bounds(limits.num_rows, limits.max_draft_len)
    neural = sources_of(drafter).neural
    return profile_from_config(
        config.decoding, target, neural, bounds, clock=clock, machine=machine, buckets=buckets
    )


def make_buckets(
    config: DecodingConfig, target: TargetModel, limits: EngineLimits
) -> Buckets | None:
    """Passes that are recorded and replayed, on a GPU; None where passes run as they come.

    A deterministic target has none: its passes differ in the tiles of keys that they read.
    """
    if target.device.type != "cuda" or target.deterministic or not config.cuda_graphs:
        return None
    width = limits.max_draft_len + 1
    return Buckets(target, limits.num_rows, limits.row_len, width, CudaCapture())


def machine_of(config: DviConfig, limits: EngineLimits, fingerprint: str) -> str:
    """Names all that decides what passes cost; ``fingerprint`` is that of target and draft base."""
    drafter = config.drafter
    draft = f"{learned_kind(drafter)} {drafter.exit_layer} {drafter.draft_vocab_size}"
    bounds = Bounds(limits.num_rows, limits.max_draft_len)
    return machine_fingerprint(fingerprint, draft, bounds)


def make_pace(config: DviConfig, costs: CostProfile | None, machine: str) -> Pace | None:
    """Corrections by the steps that are taken: of what was measured, not of a recorded profile."""
    if costs is None or config.decoding.cost_profile is not None:
        return None
    return Pace(costs, partial(forget_costs, machine))


def load_checked_target(path: Path, config: DviConfig) -> TargetModel:
    """The whole target; in deterministic mode one that has passed the self-test."""
    target = load_target(
        path,
        config.model,
        config.drafter.exit_layer,
        deterministic=config.decoding.deterministic,
        layers="all",
        max_context_len=config.serving.max_context_len,
    )
    require_determinism(target)
    return target


def require_determinism(
    target: TargetModel, check: Callable[[TargetModel], SelfTestReport] = self_test
) -> None:
    """Run the self-test of a deterministic target; raises NotDeterministic where it fails."""
    if not target.deterministic:
        return
    report = check(target)
    if not report.passed:
        raise NotDeterministic(
            "decoding.deterministic=true cannot be kept on this machine: "
            f"{report.first_difference} differs by {report.largest_gap:.1e}; "
            "use decoding.deterministic=false"
        )
