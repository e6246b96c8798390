"""Does this machine keep the canonical forward's promise? Checked on the real model at start.

Owns the comparison of bits; does not decide what happens where they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel

TEXT_LEN = 45  # a multiple of all widths, so that every position is compared
WIDTHS = (1, 5, 9)
CHUNKS = (15, 45)
NUM_ROWS = 4
LONG_START = 490  # the second text crosses the first 512-key tile


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """``passed`` or the first case whose logits or keys and values differ."""

    passed: bool
    num_cases: int
    first_difference: str = ""
    largest_gap: float = 0.0  # in logits, 0 where equal


def self_test(model: TargetModel) -> SelfTestReport:
    """Run one text by widths 1, 5, 9, two chunkings, alone and among neighbours: equal bits.

    Runs with whatever packing and padding the model has, so it fails on a fast model. Two places:
    at the start of a row and across the first tile of keys.
    """
    generator = torch.Generator().manual_seed(0)
    room = model.spec.max_position >= LONG_START + TEXT_LEN
    num_cases = 0
    for start in (0, LONG_START) if room else (0,):
        ids = _random_ids(model, generator, start + TEXT_LEN)
        others = [_random_ids(model, generator, length + 600) for length in (1, 37, 140)]
        want = _run(model, ids, start, [TEXT_LEN], [])
        for name, widths, neighbours in _cases(others):
            num_cases += 1
            got = _run(model, ids, start, widths, neighbours)
            if not all(torch.equal(a, b) for a, b in zip(want, got, strict=True)):
                gap = float((want[0] - got[0]).nan_to_num(0.0).abs().max())
                where = f"{name} from position {start}"
                return SelfTestReport(False, num_cases, where, gap)
    return SelfTestReport(True, num_cases)


def _cases(others: list[list[int]]) -> list[tuple[str, list[int], list[list[int]]]]:
    cases: list[tuple[str, list[int], list[list[int]]]] = []
    for width in WIDTHS:
        widths = [width] * (TEXT_LEN // width)
        cases.append((f"width {width}, batch 1", widths, []))
        cases.append((f"width {width}, batch {len(others) + 1}", widths, others))
    cases.extend((f"chunks of {c}", [c] * (TEXT_LEN // c), others[:1]) for c in CHUNKS)
    return cases


def _run(
    model: TargetModel,
    ids: Sequence[int],
    start: int,
    widths: Sequence[int],
    neighbours: Sequence[Sequence[int]],
) -> tuple[Tensor, Tensor]:
    """Logits [T, V] and KV of the last ``sum(widths)`` positions, decoded in these widths.

    Neighbours advance with other widths in the rows before it, so the row index differs too.
    """
    cache = model.new_cache(model.spec.num_layers, NUM_ROWS, len(ids) + 600)
    row = len(neighbours)
    if start:
        _forward(model, cache, [Segment(row, 0, tuple(ids[:start]))])
    position = start
    logits: list[Tensor] = []
    for step, width in enumerate(widths):
        segments = [
            Segment(other, step * 7, tuple(text[step * 7 : step * 7 + 1 + (step + other) % 7]))
            for other, text in enumerate(neighbours)
        ]
        segments.append(Segment(row, position, tuple(ids[position : position + width])))
        logits.append(_forward(model, cache, segments)[-width:])
        position += width
    return torch.cat(logits), cache.data[:, :, row, :, :position].clone()


@torch.no_grad()
def _forward(model: TargetModel, cache: KvCache, segments: list[Segment]) -> Tensor:
    plan = model.plan(segments)
    hidden = model.deep(model.shallow(plan, cache), plan, cache)
    return model.logits(plan.take(hidden))


def _random_ids(model: TargetModel, generator: torch.Generator, count: int) -> list[int]:
    return torch.randint(model.spec.num_token_ids, (count,), generator=generator).tolist()
