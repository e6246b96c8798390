"""One forward pass, planned: which ids at which positions of which rows.

Owns every index tensor and mask of a pass, made once; does not know weights or layers.
Letters: N flattened positions, R real ones among them, W width of a segment, S keys that a segment
sees, G query heads a key-value head, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dvi.modeling.cache import MIN_WIDTH, TILE, KvCache
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec


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
    width: int  # W, padding included
    row: int
    num_keys: int  # S
    mask: Tensor | None  # [G * W, S], 0 or -inf; None where every key is seen


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
    real: Tensor | None  # [R] flattened positions that are no padding; None when all are real
    num_kv_heads: int
    _slots: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def take(self, flat: Tensor) -> Tensor:
        """The real rows of ``flat`` [N, ...], in segment order [R, ...]."""
        return flat if self.real is None else flat.index_select(0, self.real)

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
    """Plan one pass; ``canonical`` pads every segment to width 5 and its keys to 512.

    Padding writes past the segment's end, where later tokens overwrite it, and no real query sees
    it. Two segments of one pass never share a row.
    """
    assert segments
    assert len({s.row for s in segments}) == len(segments)
    dtype, device = rope.dtype, rope.device
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    real: list[int] = []
    spans: list[Span] = []
    for segment in segments:
        count = len(segment.ids)
        assert count > 0
        assert segment.start >= 0
        width = max(count, MIN_WIDTH) if canonical else count
        end = segment.start + width
        num_keys = -(-end // TILE) * TILE if canonical else end
        whole = width == 1 and num_keys == end
        mask = None if whole else _causal_mask(segment.start, width, num_keys, dtype)
        if mask is not None:
            mask = mask.repeat(spec.group_size, 1).to(device)
        spans.append(Span(len(ids), width, segment.row, num_keys, mask))
        real.extend(range(len(ids), len(ids) + count))
        ids.extend(segment.ids)
        ids.extend([0] * (width - count))
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
        real=None if len(real) == len(ids) else torch.tensor(real, device=device),
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
