"""From a config to a model that answers: target, drafter, engine, and what the routes need to know.

Owns the wiring of the decode side; starts no thread. Knows nothing of HTTP.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dvi.config import DviConfig
from dvi.decoding import (
    AdapterSlot,
    Controller,
    Engine,
    EngineObserver,
    EngineParts,
    TextDecoder,
    TraceSink,
    limits_from_config,
)
from dvi.decoding.costs import break_even_from_config
from dvi.drafting import Drafter, make_drafter
from dvi.drift import AcceptanceDrift
from dvi.modeling.fingerprint import base_fingerprint, system_fingerprint
from dvi.modeling.loading import load_target
from dvi.modeling.selftest import self_test
from dvi.modeling.target import TargetModel
from dvi.modeling.tokenizer import Tokenizer
from serving.service import SamplingDefaults, ServedModel

logger = logging.getLogger(__name__)


class SelfTestFailed(RuntimeError):
    """decoding.deterministic cannot hold its promise on this machine; one line."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The decode side of one server, ready for its thread."""

    engine: Engine
    drafter: Drafter
    slot: AdapterSlot
    model: ServedModel
    architecture: str


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the decode side gets from the process around it."""

    model_path: Path
    user_key: bytes
    keep_content: bool
    observer: EngineObserver
    trace_sink: TraceSink


def model_name(config: DviConfig) -> str:
    """The one id of /v1/models: never a path."""
    if config.serving.model_name:
        return config.serving.model_name
    return config.model.path.rstrip("/").rsplit("/", 1)[-1] or "model"


def num_decode_threads(config: DviConfig) -> int:
    """CPU threads of the decode loop; 0 in the config is all that this process may use."""
    if config.model.num_threads:
        return config.model.num_threads
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def _load_target(config: DviConfig, path: Path) -> TargetModel:
    target = load_target(
        path,
        config.model,
        config.drafter.exit_layer,
        deterministic=config.decoding.deterministic,
        layers="all",
        max_context_len=config.serving.max_context_len,
        block_layer=config.drafter.block_layer,
    )
    if config.decoding.deterministic:
        report = self_test(target)
        if not report.passed:
            raise SelfTestFailed(
                "decoding.deterministic=true is refused: this machine's results change with "
                f"{report.first_difference} (by up to {report.largest_gap:g} in logits); "
                "run with decoding.deterministic=false"
            )
    return target


def _served_model(
    config: DviConfig, target: TargetModel, tokenizer: Tokenizer, around: Surroundings
) -> ServedModel:
    defaults = tokenizer.generation_defaults
    if defaults.repetition_penalty != 1.0:
        logger.warning(
            "generation_config.json asks for repetition_penalty=%g, which is not applied",
            defaults.repetition_penalty,
        )
    weights_hash = base_fingerprint(around.model_path, 0, 0)  # of the target alone: k has no part
    return ServedModel(
        name=model_name(config),
        created_s=int(time.time()),
        max_context_len=config.serving.max_context_len,
        num_token_ids=target.spec.num_token_ids,
        max_draft_len=config.decoding.max_draft_len,
        system_fingerprint=system_fingerprint(target, weights_hash, config.model.quantization),
        defaults=SamplingDefaults(
            defaults.temperature, defaults.top_p, max(defaults.top_k, 0), defaults.min_p
        ),
        tokenizer=tokenizer,
        user_key=around.user_key,
        keep_content=around.keep_content,
    )


def _make_decoder(tokenizer: Tokenizer, skip_special_tokens: bool) -> TextDecoder:
    return tokenizer.detokenizer(skip_special_tokens=skip_special_tokens)


def build_runtime(config: DviConfig, around: Surroundings) -> Runtime:
    """Load the model and make the engine. ValueError: the config or the model does not fit;
    SelfTestFailed: see there."""
    path = around.model_path
    tokenizer = Tokenizer.load(path)
    target = _load_target(config, path)
    limits = limits_from_config(config.decoding, config.serving, config.replay.top_ids)
    k = config.drafter.exit_layer
    block_layer = k if config.drafter.block_layer is None else config.drafter.block_layer
    base = base_fingerprint(path, k, block_layer)
    drafter = make_drafter(config.drafter, target, limits.num_rows, limits.row_len, base)
    break_even = break_even_from_config(config.decoding, target, drafter, time.perf_counter)
    logger.info("drafting pays from acceptance %.3f", break_even)
    slot = AdapterSlot(drafter, time.monotonic, around.observer)
    model = _served_model(config, target, tokenizer, around)
    engine = Engine(
        EngineParts(
            target=target,
            drafter=drafter,
            slot=slot,
            controller=Controller(config.decoding, break_even),
            limits=limits,
            make_decoder=partial(_make_decoder, tokenizer),
            trace_sink=around.trace_sink,
            system_fingerprint=model.system_fingerprint,
            observer=around.observer,
            drift=AcceptanceDrift(config.drift),
        )
    )
    return Runtime(engine, drafter, slot, model, target.spec.architecture)
