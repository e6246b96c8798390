"""A synthetic target whose draft is as good as wanted, and the checks that a GPU run makes on it.

Owns sizes and measurements; asserts nothing. The deep layers' output projections are scaled: at 0
they add nothing, so an untrained draft (head over h_k) is always right; the larger the scale, the
lower alpha. The same functions run small on a CPU in the gate.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.config import DecodingConfig
from dvi.decoding import AdapterSlot, Controller, Engine, EngineLimits, EngineParts, SilentObserver
from dvi.decoding.batch import Result, decode_batch
from dvi.decoding.gap import choice_gap
from dvi.drafting.factory import draft_branch, make_drafter
from dvi.modeling.buckets import Buckets
from dvi.modeling.capture import Capture
from dvi.modeling.layer import LayerWeights
from dvi.modeling.spec import ModelSpec, plain_inv_freq
from dvi.modeling.target import TargetModel, TargetWeights, make_target
from dvi.types import AcceptanceCounts, DecodeRequest, SamplingParams
from tests.drafting.rows import config_for, make_adapter, random_tensors

EXIT_LAYER = 2
DRAFT_LEN = 4
PROMPT_LEN = 64
SETTLING_STEPS = 3  # the prompt, and rounds in which every pass of the shape has come


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of a target."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int


# 16 x (2 x 2048^2 + 2 x 2048 x 512 + 3 x 2048 x 8192) + 2 x 32,768 x 2048 = 1.11e9 weights.
BILLION = Size(16, 2048, 8192, 32, 8, 32_768)
TINY = Size(4, 32, 48, 4, 2, 64)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target lives."""

    device: torch.device
    dtype: torch.dtype


def synthetic_target(size: Size, place: Place, deep_scale: float) -> TargetModel:
    """Random weights made on the device; the same values at every ``deep_scale``."""
    source = place.device if torch.cuda.is_available() else torch.device("cpu")
    generator = torch.Generator(source).manual_seed(0)

    def normal(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        values = torch.randn(rows, columns, generator=generator, device=source)
        return (values * scale * columns**-0.5).to(place.device, place.dtype)

    def layer(scale: float) -> LayerWeights:
        width = size.hidden // size.heads
        keys = size.kv_heads * width
        ones = torch.ones(size.hidden, device=place.device, dtype=place.dtype)
        return LayerWeights(
            input_norm=ones,
            q=normal(size.hidden, size.hidden, 2.0),
            k=normal(keys, size.hidden, 2.0),
            v=normal(keys, size.hidden),
            o=normal(size.hidden, size.hidden, scale),
            post_norm=ones,
            gate=normal(size.intermediate, size.hidden),
            up=normal(size.intermediate, size.hidden),
            down=normal(size.hidden, size.intermediate, scale),
        )

    weights = TargetWeights(
        embedding=normal(size.vocab, size.hidden, size.hidden**0.5),
        layers={
            i: layer(0.5 * (1.0 if i < EXIT_LAYER else deep_scale)) for i in range(size.layers)
        },
        final_norm=torch.ones(size.hidden, device=place.device, dtype=place.dtype),
        head=normal(size.vocab, size.hidden, 3.0),  # logits of standard deviation 3
    )
    return make_target(weights, make_spec(size), EXIT_LAYER, deterministic=False)


def make_spec(size: Size) -> ModelSpec:
    """Of a plain Llama with an own head."""
    return ModelSpec(
        architecture="LlamaForCausalLM",
        num_layers=size.layers,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_heads=size.heads,
        num_kv_heads=size.kv_heads,
        head_dim=size.hidden // size.heads,
        vocab_size=size.vocab,
        num_token_ids=size.vocab,
        norm_eps=1e-6,
        rope_inv_freq=plain_inv_freq(size.hidden // size.heads),
        tie_embeddings=False,
    )


class NoText:
    """A decoder of ids that stand for nothing."""

    def __init__(self, *, skip_special_tokens: bool) -> None:
        pass

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Pauses(SilentObserver):
    """Keeps every swap pause."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def swap_pause(self, seconds: float) -> None:
        self.seconds.append(seconds)


def open_rig(
    target: TargetModel,
    num_rows: int,
    capture: Capture | None = None,
    pauses: Pauses | None = None,
) -> Engine:
    """An engine with the untrained block, always proposing DRAFT_LEN tokens."""
    limits = EngineLimits(num_rows, max_queue=64, max_context_len=512, max_draft_len=DRAFT_LEN)
    config = config_for("block", target)
    buckets = None
    if capture is not None:
        buckets = Buckets(target, num_rows, limits.row_len, DRAFT_LEN + 1, capture)
    drafter = make_drafter(config, target, num_rows, limits.row_len, buckets=buckets)
    decoding = DecodingConfig(max_draft_len=DRAFT_LEN, draft_len=DRAFT_LEN, adaptive=False)
    observer = pauses or Pauses()
    return Engine(
        EngineParts(
            target=target,
            drafter=drafter,
            slot=AdapterSlot(drafter, time.monotonic, observer),
            controller=Controller(decoding),
            limits=limits,
            buckets=buckets,
            make_decoder=NoText,
            observer=observer,
        )
    )


@dataclass(frozen=True, slots=True)
class Decoded:
    """Answers to the same prompts in one way."""

    params: SamplingParams
    answers: list[tuple[int, ...]]
    tokens_per_s: float
    counts: AcceptanceCounts


def prompts(target: TargetModel, count: int) -> list[tuple[int, ...]]:
    """Random ids."""
    generator = torch.Generator().manual_seed(1)
    shape = (count, PROMPT_LEN)
    ids = torch.randint(target.spec.vocab_size, shape, generator=generator)
    return [tuple(row) for row in ids.tolist()]


def decode(
    engine: Engine,
    asked: Sequence[tuple[int, ...]],
    max_tokens: int,
    *,
    plain: bool,
    temperature: float = 0.0,
) -> Decoded:
    """All prompts together; a first run of the same length warms up and records the passes."""
    target = engine.parts.target
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=1)
    _run(engine, asked, params, "warm", plain=plain)
    start_s = _now_s(target)
    results = _run(engine, asked, params, "timed", plain=plain)
    seconds = _now_s(target) - start_s
    total = AcceptanceCounts()
    for one in results:
        total.add(one.counts)
    answers = [one.token_ids for one in results]
    return Decoded(params, answers, sum(map(len, answers)) / seconds, total)


def _run(
    engine: Engine,
    asked: Sequence[tuple[int, ...]],
    params: SamplingParams,
    name: str,
    *,
    plain: bool,
) -> list[Result]:
    requests = [
        DecodeRequest(f"{name}-{plain}-{i}", ids, params, speculation=not plain, log=False)
        for i, ids in enumerate(asked)
    ]
    return decode_batch(engine, requests)


def _now_s(target: TargetModel) -> float:
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True, slots=True)
class NearTies:
    """Where answers part, and by how little."""

    compared: int
    margins: tuple[float, ...]  # logits, one for each answer that differs


def near_ties(
    target: TargetModel, asked: Sequence[tuple[int, ...]], plain: Decoded, draft: Decoded
) -> NearTies:
    """The first divergence of each pair of answers, measured by a pass of its own."""
    margins = []
    for ids, one, other in zip(asked, plain.answers, draft.answers, strict=True):
        pairs = enumerate(zip(one, other, strict=True))
        place = next((i for i, (a, b) in pairs if a != b), None)
        if place is not None:
            tokens = one[place], other[place]
            request = DecodeRequest("tie", ids, plain.params)
            margins.append(choice_gap(target, None, request, one[:place], tokens))
    return NearTies(len(asked), tuple(margins))


@dataclass(frozen=True, slots=True)
class Swaps:
    """Of exchanges before each step of a running request."""

    pauses_s: list[float]
    recorded: int  # passes, while versions were exchanged; the first steps came before


def swap_often(target: TargetModel, count: int, capture: Capture | None = None) -> Swaps:
    """Exchanges of random adapters, one before each step of a running request."""
    pauses = Pauses()
    engine = open_rig(target, 1, capture, pauses)
    buckets = engine.parts.buckets
    branch = draft_branch(config_for("block", target), target)
    versions = []
    for version in (1, 2):
        tensors = random_tensors(branch.layout, version, 0.01)
        adapter = make_adapter(branch.layout, tensors, version)
        versions.append(engine.parts.drafter.prepare(adapter))
    params = SamplingParams(max_tokens=400, temperature=0.0)
    engine.submit(
        DecodeRequest("swapped", prompts(target, 1)[0], params, log=False), lambda _: None
    )
    for _ in range(SETTLING_STEPS):
        engine.step()
    before = 0 if buckets is None else buckets.num_recorded
    for turn in range(count):
        engine.slot.stage(versions[turn % 2])
        engine.step()
    recorded = 0 if buckets is None else buckets.num_recorded - before
    return Swaps(pauses.seconds, recorded)
