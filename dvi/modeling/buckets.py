"""Passes of few fixed shapes, recorded once and replayed: the decode steps of a GPU.

Owns the shapes, the tensors that a pass of a shape reads, and what was recorded on them; does not
know layers, drafts or how one records. What it costs is padding: rows and positions up to the next
shape, keys up to the next power of two of tiles.
Letters: B rows of a shape, W positions of each, N = B * W, S keys, n positions asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dvi.modeling.cache import TILE
from dvi.modeling.capture import Capture, Recording
from dvi.modeling.plan import Out, Plan, Segment, Span, make_view, slots_of
from dvi.modeling.target import TargetModel

logger = logging.getLogger(__name__)

WIDTHS = (1, 2, 3, 5, 9, 17, 33)  # 0, 1, 2, 4, 8, 16, 32 proposals and the token before them
NOWHERE = -1  # position of padding
# Rows of the tensor that a pass is described by.
IDS, POSITIONS, ROWS, ORDER = range(4)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernels of a pass depend on."""

    num_rows: int  # B
    width: int  # W
    num_keys: int  # S

    @property
    def num_positions(self) -> int:
        """N."""
        return self.num_rows * self.width


@dataclass(frozen=True, slots=True)
class Room:
    """The caches that passes are made for; the last position of a row belongs to padding."""

    num_rows: int
    capacity: int


class Buckets:
    """Plans of a target for caches of one shape. Decode thread only.

    A pass of at most ``max_width`` positions a segment takes the smallest shape that holds it; any
    other pass is planned by the target, and every pass once a recording has failed. What was
    recorded stays: the shapes are few.
    """

    def __init__(
        self, target: TargetModel, num_rows: int, max_len: int, max_width: int, capture: Capture
    ) -> None:
        self.target = target
        self.capture = capture
        self.room = Room(num_rows, -(-max_len // TILE) * TILE)
        self.max_width = min(max_width, WIDTHS[-1])
        self._buckets: dict[Shape, Bucket] = {}
        self.is_broken = False

    def give_up(self) -> None:
        """Called while the fault of a recording is handled: go on without any."""
        logger.exception("a pass could not be recorded; passes run without CUDA graphs from now on")
        self.is_broken = True

    @property
    def num_recorded(self) -> int:
        """Recordings so far."""
        return sum(bucket.num_recorded for bucket in self._buckets.values())

    def plan(self, segments: Sequence[Segment]) -> Plan:
        """See ``TargetModel.plan``; valid until the next plan of the same shape."""
        width = max(len(segment.ids) for segment in segments)
        if self.is_broken or width > self.max_width:
            return self.target.plan(segments)
        assert len({segment.row for segment in segments}) == len(segments)
        last = max(segment.start + len(segment.ids) for segment in segments)
        shape = Shape(
            min(_power_of_two(len(segments)), self.room.num_rows),
            next(one for one in WIDTHS if one >= width),
            min(_power_of_two(-(-last // TILE)) * TILE, self.room.capacity),
        )
        if shape not in self._buckets:
            logger.info("recording passes of a new shape: %s", shape)
            try:
                self._buckets[shape] = Bucket(shape, self)
            except RuntimeError:
                self.give_up()
                return self.target.plan(segments)
        return self._buckets[shape].plan(segments)


class Bucket:
    """One shape. Implements Replays."""

    def __init__(self, shape: Shape, buckets: Buckets) -> None:
        self.shape = shape
        self.room = buckets.room
        self._buckets = buckets
        self._target = buckets.target
        self._tables = self._target.rope_tables(self.room.capacity)
        index = torch.zeros(4, shape.num_positions, dtype=torch.int64)
        self._index = index.to(self._target.device)  # what IDS, POSITIONS, ROWS and ORDER name
        self._num_real = 0  # n
        self._recordings: dict[Hashable, Recorded[Any]] = {}
        self._is_recording = False
        self._derived = buckets.capture(self._derive)

    @property
    def num_recorded(self) -> int:
        """Recordings so far."""
        return 1 + len(self._recordings)

    @property
    def is_in_place(self) -> bool:
        """Whether a segment stands at its row's place, and attention reads the cache itself.

        Where a pass has fewer rows than the cache, its segments follow one another and keys and
        values are gathered: three times the traffic, of fewer rows.
        """
        return self.shape.num_rows == self.room.num_rows

    def plan(self, segments: Sequence[Segment]) -> Plan:
        """The plan of this shape for these segments."""
        self._index.copy_(torch.from_numpy(self._describe(segments)))
        self._derived.replay()
        return replace(self._derived.made, segments=tuple(segments), replays=self)

    def run(self, name: Hashable, function: Callable[..., Out], inputs: Sequence[Tensor]) -> Out:
        """See ``Plan.run``."""
        if self._is_recording or self._buckets.is_broken:  # recording: a part of what is recorded
            return function(*inputs)
        if name not in self._recordings:
            try:
                self._recordings[name] = self._record(function, inputs)
            except RuntimeError:
                self._buckets.give_up()
                return function(*inputs)
        found: Recorded[Out] = self._recordings[name]
        return found.replay(inputs)

    def real(self, states: Tensor) -> Tensor:
        """See ``Plan.real``."""
        return states.index_select(0, self._index[ORDER, : self._num_real])

    def _record(self, function: Callable[..., Out], inputs: Sequence[Tensor]) -> Recorded[Out]:
        own = [given.clone() for given in inputs]
        self._is_recording = True
        try:
            return Recorded(own, self._buckets.capture(lambda: function(*own)))
        finally:
            self._is_recording = False

    def _describe(self, segments: Sequence[Segment]) -> NDArray[np.int64]:
        """[4, N] int64: what the tensors of the pass are derived from."""
        width = self.shape.width
        index = np.zeros((4, self.shape.num_positions), np.int64)
        index[POSITIONS] = NOWHERE
        index[ROWS] = segments[0].row  # padding may write to any row's last position
        order: list[int] = []
        for place, segment in enumerate(segments):
            first = (segment.row if self.is_in_place else place) * width
            end = first + len(segment.ids)
            index[IDS, first:end] = segment.ids
            index[POSITIONS, first:end] = np.arange(segment.start, segment.start + end - first)
            index[ROWS, first : first + width] = segment.row
            order.extend(range(first, end))
        index[ORDER, : len(order)] = order
        self._num_real = len(order)
        return index

    def _derive(self) -> Plan:
        """All tensors of the pass, from ``_index`` on the device alone."""
        spec, room = self._target.spec, self.room
        cos, sin = self._tables
        ids, places, rows, _ = self._index
        positions = places.clamp(min=0)
        written = places.masked_fill(places == NOWHERE, room.capacity - 1)
        cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
        shape = (room.num_rows, room.capacity)
        slots = slots_of(rows, written, shape, spec)
        view = make_view([self._span(positions, rows)], cos, sin, spec)
        return Plan((), spec, False, ids, positions, rows, cos, sin, {shape: slots}, [view])

    def _span(self, positions: Tensor, rows: Tensor) -> Span:
        """One attention call; padding sees the first key."""
        spec, shape = self._target.spec, self.shape
        num_rows, width, num_keys = shape.num_rows, shape.width, shape.num_keys
        last = positions.view(num_rows, width, 1)
        hidden = torch.arange(num_keys, device=last.device) > last  # [B, W, S]
        mask = torch.zeros_like(hidden, dtype=self._target.dtype)
        mask = mask.masked_fill_(hidden, float("-inf")).repeat(1, spec.group_size, 1).unsqueeze(1)
        gathered = None if self.is_in_place else rows.view(num_rows, width)[:, 0].contiguous()
        return Span(0, width, 0, num_rows, num_keys, 0, mask, gathered)


@dataclass(frozen=True, slots=True)
class Recorded(Generic[Out]):
    """A recording and the tensors that stand for its inputs."""

    inputs: Sequence[Tensor]
    recording: Recording[Out]

    def replay(self, given: Sequence[Tensor]) -> Out:
        """What the recorded function returns on these values."""
        for own, one in zip(self.inputs, given, strict=True):
            own.copy_(one)
        self.recording.replay()
        return self.recording.made


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
