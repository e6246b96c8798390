"""One arm from its config to its result: target, stream, training, simulation, live check.

Owns the order and what is opened; does not know which arms there are.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dvi.config import DviConfig
from dvi.decoding.startup import Loaded, load_model
from dvi.drafting.ground import draft_fingerprint
from dvi.launch.compose import compose_config
from dvi.launch.request import LaunchRequest
from dvi.registry import Registry
from dvi.study.arms import Arm
from dvi.study.live import LiveCheck, Sample, check_live
from dvi.study.memory import Recalled, recall
from dvi.study.record import Recording
from dvi.study.results import ArmResult, RequestRow
from dvi.study.simulate import Progress, Served, Service, simulate
from dvi.study.sources import Setup, serve_all
from dvi.study.states import CachedStates
from dvi.types import Trace
from trainers.build import Ground, build_training
from trainers.prepared import open_rows
from trainers.training import Training

LIVE_REQUESTS = 4  # of the stream's end that the engine decodes again

# Alpha of the draft alone at a fixed K; no checkpoint is needed, since an arm is done or not.
FIXED = (
    "decoding.adaptive=false",
    "serving.max_batch_size=1",
    "serving.max_context_len=512",
    "trainer.save_steps=1000000",
    "data.max_tokens=80",
)


def config_of(overrides: Sequence[str]) -> DviConfig:
    """The checked config of some words. Raises ConfigError."""
    return compose_config(LaunchRequest("study", (*FIXED, *overrides)))


class Models:
    """Targets with the h_k of their traces, one at a time: arms of one exit layer follow each
    other within a seed."""

    def __init__(self) -> None:
        self._key: object = None
        self._loaded: Loaded | None = None
        self._states: CachedStates | None = None

    def get(self, config: DviConfig) -> tuple[Loaded, CachedStates]:
        """The target of a config and its states."""
        key = (config.model, config.drafter.exit_layer, config.drafter.block_layer)
        if self._loaded is None or self._states is None or key != self._key:
            self._key, self._loaded = key, load_model(config)
            trainer = config.trainer
            rows = max(trainer.batch_size, trainer.max_holdout_traces, trainer.min_holdout_traces)
            self._states = CachedStates(self._loaded.target, rows, trainer.max_seq_len)
        return self._loaded, self._states


@dataclass(frozen=True, slots=True)
class Kit:
    """What all arms of a run share."""

    common: Sequence[str]  # overrides of all arms
    recordings: dict[float, Recording]  # by temperature
    models: Models
    work_dir: Path  # emptied before and after each arm
    adapters: Path | None = None  # the registry whose live version arms start with


def run_arm(arm: Arm, kit: Kit) -> ArmResult:
    """Serve and learn from the arm's stream; raises ValueError for a config that does not fit."""
    overrides = (*kit.common, *arm.setting.overrides, f"run.seed={arm.seed}")
    config = config_of(overrides)
    loaded, states = kit.models.get(config)
    plan = arm.setting.plan
    recording = kit.recordings[plan.temperature]
    stream = [cut(recording[one], arm.setting.top_ids) for one in plan.requests(arm.seed)]
    _require_whole(stream, config.trainer.max_seq_len)
    base = draft_fingerprint(loaded.path, config)
    draft_len = config.decoding.draft_len
    start_s = time.perf_counter()
    with _emptied(kit.work_dir) as folder, open_rows(folder, config.replay) as store:
        if kit.adapters is not None:
            shutil.copytree(kit.adapters, folder / "adapters")
        registry = Registry(folder / "adapters", config.registry.keep_versions)
        ground = Ground(loaded.target, base, store, registry, folder / "trainer")
        training = build_training(config, ground)
        training.parts.learner.inputs = states
        if kit.adapters is not None:
            _require_live(training, arm)
        progress = Progress()
        served = list(simulate(training, stream, draft_len, progress))
        seconds = time.perf_counter() - start_s
        service = Service(training)
        service.follow()
        setup = Setup(config, loaded.tokenizer.detokenizer)
        checks = check_live(loaded, setup, _sample(service, stream))
    recalled = recall(config.drafter, stream)
    walks = serve_all(setup, [(one.trace, one.guess) for one in served])
    decisions = Counter(str(gate.verdict.decision) for gate in progress.gates)
    return ArmResult(
        arm=arm.name,
        setting=arm.setting.name,
        seed=arm.seed,
        overrides=overrides,
        stream=plan.kind,
        draft_len=draft_len,
        seconds=round(seconds, 2),
        promoted=decisions["promoted"],
        held=decisions["held"],
        refused=decisions["refused"],
        dropped_steps=progress.num_dropped,
        live={name: _live_row(check) for name, check in checks.items()},
        requests=tuple(_row(*one) for one in zip(served, recalled, walks, strict=True)),
    )


def _require_live(training: Training, arm: Arm) -> None:
    """Raise ValueError where the registry's live version does not fit the arm."""
    version, _, fault = training.parts.versions.served()
    if not version:
        raise ValueError(f"{arm.name} cannot start from --adapters: {fault or 'nothing is live'}")


def cut(trace: Trace, top_ids: int) -> Trace:
    """The trace as it were with fewer target logits kept."""
    if trace.top_ids.shape[1] <= top_ids:
        return trace
    ids = np.ascontiguousarray(trace.top_ids[:, :top_ids])
    return replace(
        trace, top_ids=ids, top_logits=np.ascontiguousarray(trace.top_logits[:, :top_ids])
    )


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    """A folder that may hold what a killed arm left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def _require_whole(stream: Sequence[Trace], max_seq_len: int) -> None:
    longest = max(len(trace.prompt_ids) + len(trace.output_ids) for trace in stream)
    if longest > max_seq_len:
        raise ValueError(
            f"trainer.max_seq_len={max_seq_len} is too small: a recorded answer with its prompt "
            f"has {longest} tokens"
        )


def _sample(service: Service, stream: Sequence[Trace]) -> Sample:
    """The end of the stream, by the version in service."""
    traces = stream[-LIVE_REQUESTS:]
    guesses = [service.guess(trace) for trace in traces]
    return Sample(service.adapter, stream[:-LIVE_REQUESTS], traces, guesses)


def _live_row(check: LiveCheck) -> dict[str, int]:
    return {
        "requests": check.num_requests,
        "same_answers": check.num_same_answers,
        "simulated_judged": check.simulated.judged,
        "simulated_accepted": check.simulated.accepted,
        "live_judged": check.live.judged,
        "live_accepted": check.live.accepted,
    }


def _row(one: Served, memory: Recalled, walks: dict[str, str]) -> RequestRow:
    return RequestRow(
        domain=one.trace.domain,
        max_tokens=one.trace.sampling.max_tokens,
        hits=_digits(one.hits),
        replaced=None if one.replaced_hits is None else _digits(one.replaced_hits),
        memory=_digits(memory.hits),
        known=_digits(memory.known),
        walks=walks,
        version=one.version,
        num_steps=one.num_steps,
        trained_positions=one.trained_positions,
    )


def _digits(values: Sequence[bool]) -> str:
    return "".join("1" if value else "0" for value in values)
