"""Does this machine keep the canonical forward's promise? Checked on the real model at start.

Owns the comparison of bits; does not decide what happens where they differ.
Letters: T compared positions, V head rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel

PREFIX_LEN = 506  # the text after it crosses the first 512-key tile
TEXT_LEN = 10
WIDTHS = (1, 5, 9)
PROMPT_LEN = 80
CHUNKS = (80, 33)  # two ways to cut the prompt; 33 leaves one row after a block of 32
NEIGHBOUR_LENS = (1, 14, 37)
NUM_ROWS = len(NEIGHBOUR_LENS) + 1


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """``passed``, or the first case whose logits or keys and values differ."""

    passed: bool
    num_cases: int
    first_difference: str = ""
    largest_gap: float = 0.0  # in logits, or in keys and values for a chunking


@torch.no_grad()
def self_test(model: TargetModel) -> SelfTestReport:
    """One text by two chunkings, by widths 1, 5, 9, alone and among neighbours: equal bits.

    Runs with whatever packing and padding the model has, so a fast model fails it. Costs about
    35 forward passes: the long prefix is random keys and values, not a forward.
    """
    generator = torch.Generator().manual_seed(0)
    prompt = _random_ids(model, generator, PROMPT_LEN)
    neighbours = [_random_ids(model, generator, length + TEXT_LEN) for length in NEIGHBOUR_LENS]
    whole, chunked = (
        _prefill(model, prompt, CHUNKS[0], []),
        _prefill(model, prompt, CHUNKS[1], neighbours),
    )
    gap = _gap(whole, chunked)
    if gap is not None:
        return SelfTestReport(False, 1, f"prefill chunks of {CHUNKS[0]} and {CHUNKS[1]}", gap)
    spec = model.spec
    shape = (spec.num_layers, 2, spec.num_kv_heads, PREFIX_LEN, spec.head_dim)
    prefix = torch.randn(shape, generator=generator).to(model.device, model.dtype)
    ids = _random_ids(model, generator, TEXT_LEN)
    want = _decode(model, prefix, ids, TEXT_LEN, [])
    num_cases = 1
    for width in WIDTHS:
        for others in ([], neighbours):
            num_cases += 1
            got = _decode(model, prefix, ids, width, others)
            gaps = [_gap(a, b) for a, b in zip(want, got, strict=True)]
            if gaps != [None, None]:
                name = f"width {width}, batch {len(others) + 1}"
                return SelfTestReport(False, num_cases, name, gaps[0] or 0.0)
    return SelfTestReport(True, num_cases)


def _prefill(
    model: TargetModel, ids: Sequence[int], chunk: int, neighbours: Sequence[Sequence[int]]
) -> Tensor:
    """KV [layers, 2, kv_heads, len(ids), head_dim] of a text that comes in chunks."""
    cache = _new_cache(model)
    row = len(neighbours)
    for start in range(0, len(ids), chunk):
        beside = [Segment(i, 0, tuple(text)) for i, text in enumerate(neighbours)]
        own = Segment(row, start, tuple(ids[start : start + chunk]))
        _forward(model, cache, [*beside, own])
    return cache.data[:, :, row, :, : len(ids)].clone()


def _decode(
    model: TargetModel,
    prefix: Tensor,
    ids: Sequence[int],
    width: int,
    neighbours: Sequence[Sequence[int]],
) -> tuple[Tensor, Tensor]:
    """Logits [T, V] and KV of ``ids`` after ``prefix``, decoded ``width`` positions at a time.

    Neighbours advance with widths of their own in the rows before it.
    """
    cache = _new_cache(model)
    row, start = len(neighbours), prefix.shape[3]
    cache.data[:, :, row, :, :start] = prefix
    logits: list[Tensor] = []
    for step, first in enumerate(range(0, len(ids), width)):
        beside = [
            Segment(i, step, tuple(text[step : step + 1 + (2 * step + 3 * i) % 7]))
            for i, text in enumerate(neighbours)
        ]
        own = Segment(row, start + first, tuple(ids[first : first + width]))
        logits.append(_forward(model, cache, [*beside, own])[-len(own.ids) :])
    return torch.cat(logits), cache.data[:, :, row, :, start : start + len(ids)].clone()


def _gap(want: Tensor, got: Tensor) -> float | None:
    """None if every bit is equal, else the largest difference."""
    if torch.equal(want, got):
        return None
    return float((want.double() - got.double()).nan_to_num(0.0).abs().max())


def _new_cache(model: TargetModel) -> KvCache:
    return model.new_cache(model.spec.num_layers, NUM_ROWS, PREFIX_LEN + TEXT_LEN)


def _forward(model: TargetModel, cache: KvCache, segments: list[Segment]) -> Tensor:
    plan = model.plan(segments)
    hidden = model.deep(model.shallow(plan, cache), plan, cache)
    return model.logits(hidden)


def _random_ids(model: TargetModel, generator: torch.Generator, count: int) -> list[int]:
    return torch.randint(model.spec.num_token_ids, (count,), generator=generator).tolist()
