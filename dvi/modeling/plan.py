"""One forward pass, planned: which ids at which positions of which rows.

Owns every index tensor and mask of a pass, made once; does not know weights or layers.
Letters: N flattened positions, R rows of a span, W width of a segment, S keys that a span reads, G
query heads a key-value head, Q query rows of a key-value head, D head width.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.modeling.cache import TILE, KvCache
from dvi.modeling.rope import RopeTable
from dvi.modeling.spec import ModelSpec
from dvi.native.layers import NativePass

SHARED_KEYS = 2  # longest over shortest row of one attention call; masked keys are read in vain
PIECE_QUERIES = 48  # query rows that read a key while it is in the first cache
MIN_QUERIES = 5  # fewest query rows whose attention bits do not depend on their number
Out = TypeVar("Out", Tensor, None)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens of one row; positions below ``start`` are in the cache already."""

    row: int
    start: int  # absolute position of ids[0]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Segments of equal width in consecutive rows: one attention call."""

    first: int  # the first flattened position
    width: int  # W, of each segment
    row: int  # of the first segment
    num_rows: int  # R
    num_keys: int  # S
    num_padding: int  # query rows beyond G * W whose output is dropped
    mask: Tensor | None  # [R, 1, Q, S], 0 or -inf, Q = G * W + padding; None where all is seen
    gathered: Tensor | None = None  # [R] int64, rows that follow no order; None: from ``row`` on

    def of_rows(self, kept: Tensor) -> Tensor:
        """[rows, kv_heads, capacity, D] -> [R, kv_heads, S, D] of this span's rows."""
        if self.gathered is not None:
            return kept[:, :, : self.num_keys].index_select(0, self.gathered)
        return kept[self.row : self.row + self.num_rows, :, : self.num_keys]


@dataclass(frozen=True, slots=True)
class TorchView:
    """What a pass needs beside its plan where torch computes the layers."""

    spans: tuple[Span, ...]
    cos: Tensor  # [N, qkv_heads, D], 1 on values
    sin: Tensor  # [N, qkv_heads, D], 0 on values


class Replays(Protocol):
    """What a plan of fixed shape stands on (``dvi.modeling.buckets``)."""

    def run(self, name: Hashable, function: Callable[..., Out], inputs: Sequence[Tensor]) -> Out:
        """See ``Plan.run``."""

    def real(self, states: Tensor) -> Tensor:
        """See ``Plan.real``."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All index tensors of one pass. Read-only for layers; valid for caches of any depth."""

    segments: tuple[Segment, ...]
    spec: ModelSpec
    canonical: bool
    ids: Tensor  # [N] int64
    positions: Tensor  # [N] int64
    rows: Tensor  # [N] int64
    cos: Tensor  # [N, D]
    sin: Tensor  # [N, D]
    _slots: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    _views: list[TorchView] = field(default_factory=list)
    _native: dict[int, NativePass] = field(default_factory=dict)
    replays: Replays | None = None

    def run(self, name: Hashable, function: Callable[..., Out], *inputs: Tensor) -> Out:
        """``function(*inputs)``, which reads this plan; a plan of fixed shape replays it.

        What is replayed is what the function did when ``name`` came first, on the tensors of then;
        what it returns is valid until ``name`` is run again.
        """
        if self.replays is None:
            return function(*inputs)
        return self.replays.run(name, function, inputs)

    def real(self, states: Tensor) -> Tensor:
        """[N, ...] of the pass -> those of its segments, in their order: all, or new storage."""
        return states if self.replays is None else self.replays.real(states)

    def slots(self, cache: KvCache) -> Tensor:
        """[N * 2 * kv_heads] rows of ``cache.layer_slots`` that this pass writes."""
        shape = (cache.num_rows, cache.capacity)
        if shape not in self._slots:
            assert self.replays is None, f"made for caches of {list(self._slots)}, not {shape}"
            self._slots[shape] = slots_of(self.rows, self.positions, shape, self.spec)
        return self._slots[shape]

    def torch_view(self) -> TorchView:
        """Attention calls with their masks, and tables over all heads."""
        if not self._views:
            first = 0
            spans: list[Span] = []
            for group in _groups(self.segments, canonical=self.canonical):
                spans.append(_make_span(group, first, self))
                first += sum(len(segment.ids) for segment in group)
            self._views.append(make_view(spans, self.cos, self.sin, self.spec))
        return self._views[0]

    def native(self, cache: KvCache) -> NativePass:
        """The pass as our own kernels read it."""
        place = cache.place
        if place not in self._native:
            most = max(1, PIECE_QUERIES // self.spec.group_size)
            self._native[place] = NativePass(
                (self.rows, self.positions, torch.tensor(_pieces(self.segments, most))),
                (self.cos, self.sin),
                cache.data,
                num_keys=max(segment.start + len(segment.ids) for segment in self.segments),
            )
        return self._native[place]


class Planner(Protocol):
    """Who makes plans: a target, or the buckets on it."""

    def plan(self, segments: Sequence[Segment]) -> Plan:
        """Index tensors of one pass."""


def make_plan(
    segments: Sequence[Segment], spec: ModelSpec, rope: RopeTable, *, canonical: bool
) -> Plan:
    """Plan one pass; ``canonical`` gives torch's attention 5 query rows or more and keys in tiles
    of 512.

    Keys past a segment's end are masked. Two segments of one pass never share a row.
    """
    assert segments
    assert len({s.row for s in segments}) == len(segments)
    ids: list[int] = []
    positions: list[int] = []
    rows: list[int] = []
    for segment in segments:
        width = len(segment.ids)
        assert width > 0
        assert segment.start >= 0
        ids.extend(segment.ids)
        positions.extend(range(segment.start, segment.start + width))
        rows.extend([segment.row] * width)
    index = torch.tensor((ids, positions, rows), device=rope.device)
    cos, sin = rope.rows(index[1], max(positions) + 1)
    return Plan(tuple(segments), spec, canonical, index[0], index[1], index[2], cos, sin)


def slots_of(rows: Tensor, positions: Tensor, shape: tuple[int, int], spec: ModelSpec) -> Tensor:
    """[N] and [N] -> [N * 2 * kv_heads], lines of a cache layer of (rows, capacity)."""
    num_rows, capacity = shape
    heads = torch.arange(spec.num_kv_heads, device=rows.device)
    planes = torch.arange(2, device=rows.device)[:, None] * num_rows  # keys, values
    lines = (planes + rows[:, None, None]) * spec.num_kv_heads + heads
    return (lines * capacity + positions[:, None, None]).flatten()


def make_view(spans: Sequence[Span], cos: Tensor, sin: Tensor, spec: ModelSpec) -> TorchView:
    """The spans with tables [N, D] over all heads."""
    return TorchView(tuple(spans), _over_heads(cos, spec, 1.0), _over_heads(sin, spec, 0.0))


def _pieces(segments: Sequence[Segment], most: int) -> list[int]:
    """Where parts of at most ``most`` positions begin, and the end of the last."""
    starts: list[int] = []
    first = 0
    for segment in segments:
        end = first + len(segment.ids)
        starts.extend(range(first, end, most))
        first = end
    return [*starts, first]


def _groups(segments: Sequence[Segment], *, canonical: bool) -> list[list[Segment]]:
    """Runs of segments, in order, that one attention call can take.

    Their key counts are equal in a canonical plan, where more keys could mean other bits, and else
    within a factor that keeps masked keys cheaper than another call.
    """
    groups: list[list[Segment]] = []
    for segment in segments:
        width = len(segment.ids)
        group = groups[-1] if groups else []
        if (
            group
            and segment.row == group[-1].row + 1
            and width == len(group[0].ids)
            and _can_share(segment.start + width, [one.start + width for one in group], canonical)
        ):
            group.append(segment)
        else:
            groups.append([segment])
    return groups


def _can_share(end: int, ends: Sequence[int], canonical: bool) -> bool:
    if canonical:
        return _in_tiles(end) == _in_tiles(ends[0])
    return max(end, *ends) <= max(SHARED_KEYS * min(end, *ends), TILE)


def _in_tiles(end: int) -> int:
    """``end`` keys in whole tiles."""
    return -(-end // TILE) * TILE


def _make_span(group: Sequence[Segment], first: int, plan: Plan) -> Span:
    width, spec, canonical = len(group[0].ids), plan.spec, plan.canonical
    ends = [segment.start + width for segment in group]
    num_keys = _in_tiles(ends[0]) if canonical else max(ends)
    num_padding = max(0, MIN_QUERIES - width * spec.group_size) if canonical else 0
    mask = None
    if width > 1 or num_keys > min(ends):
        mask = _causal_mask(group, width, num_keys, plan.cos.dtype).repeat(1, spec.group_size, 1)
        mask = F.pad(mask, (0, 0, 0, num_padding)).unsqueeze(1).to(plan.cos.device)
    return Span(first, width, group[0].row, len(group), num_keys, num_padding, mask)


def _causal_mask(group: Sequence[Segment], width: int, num_keys: int, dtype: torch.dtype) -> Tensor:
    """[R, W, S]: query i of a segment sees keys up to start + i."""
    last_key = torch.tensor([[one.start + i for i in range(width)] for one in group])  # [R, W]
    hidden = torch.arange(num_keys) > last_key[..., None]
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))


def _over_heads(table: Tensor, spec: ModelSpec, on_values: float) -> Tensor:
    """[N, D] -> [N, qkv_heads, D]: queries and keys rotate, values stay."""
    num_positions, head_dim = table.shape
    rotated = spec.num_heads + spec.num_kv_heads
    full = table.new_full((num_positions, spec.qkv_heads, head_dim), on_values)
    full[:, :rotated] = table[:, None]
    return full
