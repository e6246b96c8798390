"""A small world for the trainer: a tiny target, traces that a live draft made on it, a store.

Owns no assertion. Traces come from real rounds (propose, verify, commit), so that what the trainer
recomputes can be compared with what was logged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dvi.config import DrafterConfig, DviConfig, ReplayConfig, TrainerConfig
from dvi.drafting import Drafter, DraftRequest
from dvi.drafting.factory import make_drafter
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.registry import Registry
from dvi.replay import ReplayStore, default_url, open_store
from dvi.sampling import ChoicePoint, choose
from dvi.types import FinishReason, Round, SamplingParams, Source, Trace
from tests.rigs import CPU, build_target
from trainers.build import Ground, build_training
from trainers.training import Training

TOP_IDS = 16  # of a vocabulary of 48
VOCAB = 48
NUM_PROMPTS = 7  # no multiple of 3: each is met greedy and sampled
BASE = "base-of-the-tests"
DRAFTER = DrafterConfig(
    exit_layer=2,
    lora_rank=4,
    lora_alpha=8.0,
    head_lora_rank=4,
    head_lora_alpha=4.0,
    draft_vocab_size=36,  # of 48: the list is at work in every test of this room
)
TRAINER = TrainerConfig(
    learning_rate=1e-2,
    warmup_steps=3,
    batch_size=4,
    newest_rows=6,
    reservoir_rows=5,
    steps_per_trace=1.0,
    publish_steps=3,
    save_steps=2,
    min_holdout_traces=2,
    max_holdout_traces=3,
    poll_interval_s=0.02,
    payback_s=0.0,  # every step that is paid for is made, whatever it saves
    priority="normal",  # beside a busy test run the lowest one gets a hundredth of a core
)


def tiny_target(
    dtype: torch.dtype = torch.float32, seed: int = 3, device: torch.device = CPU
) -> TargetModel:
    """A target on which an untrained draft is rarely right."""
    return build_target("tiny-rand", dtype=dtype, seed=seed, vocab=VOCAB, device=device)


def tiny_config(folder: Path, **trainer: object) -> DviConfig:
    """A config whose state lies in ``folder``."""
    return DviConfig(
        state_dir=str(folder),
        drafter=DRAFTER,
        trainer=replace(TRAINER, **trainer),
        replay=ReplayConfig(max_bytes=1 << 22, top_ids=TOP_IDS),
    )


def greedy(max_tokens: int) -> SamplingParams:
    """Temperature 0."""
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def prompt_of(seed: int, length: int = 5) -> tuple[int, ...]:
    """Uniform ids."""
    return tuple(int(i) for i in np.random.default_rng(seed).integers(0, VOCAB, length))


class LiveDraft:
    """Decodes one request at a time with a drafter, as an engine of batch 1 would."""

    def __init__(
        self, target: TargetModel, draft_len: int = 3, config: DrafterConfig = DRAFTER
    ) -> None:
        self.target = target
        self.draft_len = draft_len
        self.drafter: Drafter = make_drafter(config, target, 1, 256, BASE)
        self.cache = target.new_cache(target.spec.num_layers, 1, 256)

    def decode(self, name: str, prompt: Sequence[int], params: SamplingParams) -> Trace:
        """The trace of one answer of exactly ``max_tokens`` tokens."""
        tokens = list(prompt)
        rows: list[torch.Tensor] = []
        rounds: list[Round] = []
        if len(prompt) > 1:
            self._pass(0, prompt[:-1])
        while (room := params.max_tokens - (len(tokens) - len(prompt))) > 0:
            start = len(tokens) - 1
            width = min(self.draft_len, room - 1)
            request = DraftRequest(0, start, tokens[-1], width, params)
            proposed = self.drafter.propose([request], self.cache)[0] if width else None
            ids = proposed.ids if proposed else ()
            logits = self._pass(start, [tokens[-1], *ids])
            chosen = choose(
                logits, [ChoicePoint(params, start + 1 + i) for i in range(len(logits))]
            )
            accepted = 0
            while accepted < len(ids) and ids[accepted] == chosen[accepted]:
                accepted += 1
            tokens += chosen[: accepted + 1]
            rows += list(logits[: accepted + 1])
            judged = min(accepted + 1, len(ids))
            source = Source.NEURAL if judged else Source.TARGET
            logprobs = proposed.logprobs[:judged] if proposed else ()
            version = self.drafter.adapter_version
            rounds.append(Round(source, version, ids[:judged], logprobs, accepted))
        texts = (prompt, tokens[len(prompt) :])
        return make_trace(name, texts, params, torch.stack(rows), rounds)

    @torch.no_grad()
    def _pass(self, start: int, ids: Sequence[int]) -> torch.Tensor:
        plan = self.target.plan([Segment(0, start, tuple(ids))])
        hidden = self.target.shallow(plan, self.cache)
        self.drafter.observe(hidden, plan)
        return self.target.logits(self.target.deep(hidden, plan, self.cache))


def make_trace(
    name: str,
    texts: tuple[Sequence[int], Sequence[int]],  # prompt, output
    params: SamplingParams,
    logits: torch.Tensor,  # [T, V]
    rounds: Sequence[Round],
) -> Trace:
    """A trace with its top ids taken from raw target logits."""
    prompt, output = texts
    top = logits.float().topk(TOP_IDS)
    return Trace(
        request_id=name,
        prompt_ids=tuple(prompt),
        output_ids=tuple(output),
        sampling=params,
        finish_reason=FinishReason.LENGTH,
        system_fingerprint="fp",
        top_ids=top.indices.numpy().astype(np.int32),
        top_logits=top.values.numpy(),
        logsumexp=logits.float().logsumexp(-1).numpy(),
        rounds=tuple(rounds),
    )


def live_traces(target: TargetModel, count: int, max_tokens: int = 12) -> list[Trace]:
    """Answers to few prompts that come again and again; every third one is sampled."""
    live = LiveDraft(target)
    traces = []
    for i in range(count):
        params = greedy(max_tokens)
        if i % 3 == 2:
            params = replace(params, temperature=0.8, seed=i)
        traces.append(live.decode(f"r{i}", prompt_of(i % NUM_PROMPTS), params))
    return traces


@dataclass
class World:
    """Everything a training stands on, in one folder."""

    folder: Path
    target: TargetModel
    config: DviConfig
    store: ReplayStore
    registry: Registry

    def training(self, *, fingerprint: str = BASE, training_id: int = 7) -> Training:
        """A training that went on from what the folder holds."""
        training = self.fresh(fingerprint=fingerprint)
        training.resume(training_id)
        return training

    def fresh(self, *, fingerprint: str = BASE) -> Training:
        """A training before ``resume``."""
        folder = self.folder / "trainer"
        ground = Ground(self.target, fingerprint, self.store, self.registry, folder)
        return build_training(self.config, ground)

    def drain(self) -> None:
        """Close the store."""
        self.store.close()


def make_world(
    folder: Path, traces: Sequence[Trace], *, target: TargetModel | None = None, **trainer: object
) -> World:
    """A world whose store holds ``traces``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(folder, **trainer)
    store = open_store(default_url(folder), config.replay)
    if traces:
        store.append("w", traces)
    target = target or tiny_target()
    return World(folder, target, config, store, Registry(folder / "adapters", 20))
