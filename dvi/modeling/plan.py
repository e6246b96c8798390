"""One forward pass, planned: which ids at which positions of which rows.

Owns every index tensor and mask of a pass, made once; does not know weights or layers.
Letters: N flattened positions, W width of a segment, S keys that a segment sees, G query heads a
key-value head, Q query rows of a key-value head, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.cache import TILE, KvCache
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec

MIN_QUERIES = 5  # fewest query rows whose attention bits do not depend on their number


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one row; positions below ``start`` are in the cache already."""

    row: int
    start: int  # absolute position of ids[0]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Where one segment lies in the flattened pass."""

    first: int  # its first flattened position
    width: int  # W
    row: int
    num_keys: int  # S
    num_padding: int  # query rows beyond G * W whose output is dropped
    mask: Tensor | None  # [Q, S], 0 or -inf, Q = G * W + num_padding; None where all is seen


@dataclass(frozen=True, slots=True)
class Plan:
    """All index tensors of one pass. Read-only for layers; valid for caches of any depth."""

    segments: tuple[Segment, ...]
    spans: tuple[Span, ...]
    ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    rows: Tensor  # [N] int64
    cos: Tensor  # [N, qkv_heads, D], 1 on values
    sin: Tensor  # [N, qkv_heads, D], 0 on values
    num_kv_heads: int
    _slots: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def slots(self, cache: KvCache) -> Tensor:
        """[N * 2 * kv_heads] rows of ``cache.layer_slots`` that this pass writes."""
        shape = (cache.num_rows, cache.capacity)
        if shape not in self._slots:
            num_rows, capacity = shape
            heads = torch.arange(self.num_kv_heads, device=self.ids.device)
            planes = torch.arange(2, device=self.ids.device)[:, None] * num_rows  # keys, values
            lines = (planes + self.rows[:, None, None]) * self.num_kv_heads + heads
            self._slots[shape] = (lines * capacity + self.positions[:, None, None]).flatten()
        return self._slots[shape]


def make_plan(
    segments: Sequence[Segment], spec: ModelSpec, rope: RopeTable, *, canonical: bool
) -> Plan:
    """Plan one pass; ``canonical`` gives attention 5 query rows or more and keys in tiles of 512.

    Keys past a segment's end are masked. Two segments of one pass never share a row.
    """
    assert segments
    assert len({s.row for s in segments}) == len(segments)
    dtype, device = rope.dtype, rope.device
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    spans: list[Span] = []
    for segment in segments:
        width = len(segment.ids)
        assert width > 0
        assert segment.start >= 0
        end = segment.start + width
        num_keys = -(-end // TILE) * TILE if canonical else end
        num_padding = max(0, MIN_QUERIES - width * spec.group_size) if canonical else 0
        mask = None
        if width > 1 or num_keys > end:
            mask = _causal_mask(segment.start, width, num_keys, dtype).repeat(spec.group_size, 1)
            mask = F.pad(mask, (0, 0, 0, num_padding)).to(device)
        spans.append(Span(len(ids), width, segment.row, num_keys, num_padding, mask))
        ids.extend(segment.ids)
        positions.extend(range(segment.start, end))
        rows.extend([segment.row] * width)
    position_tensor = torch.tensor(positions, device=device)
    cos, sin = rope.rows(position_tensor, max(positions) + 1)
    return Plan(
        segments=tuple(segments),
        spans=tuple(spans),
        ids=torch.tensor(ids, device=device),
        positions=position_tensor,
        rows=torch.tensor(rows, device=device),
        cos=_over_heads(cos, spec, 1.0),
        sin=_over_heads(sin, spec, 0.0),
        num_kv_heads=spec.num_kv_heads,
    )


def _causal_mask(start: int, width: int, num_keys: int, dtype: torch.dtype) -> Tensor:
    """[W, S]: query i sees keys up to start + i."""
    mask = torch.full((width, num_keys), float("-inf"), dtype=dtype)
    return mask.triu_(start + 1)


def _over_heads(table: Tensor, spec: ModelSpec, on_values: float) -> Tensor:
    """[N, D] -> [N, qkv_heads, D]: queries and keys rotate, values stay."""
    num_positions, head_dim = table.shape
    rotated = spec.num_heads + spec.num_kv_heads
    full = table.new_full((num_positions, spec.qkv_heads, head_dim), on_values)
    full[:, :rotated] = table[:, None]
    return full
