"""Forward passes the tests share. Owns no expectation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel


@contextmanager
def without_kernels() -> Iterator[None]:
    """Models made within are torch's, on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dvi.modeling.target.fits", lambda *_args, **_kwargs: False)
        patch.setattr("dvi.modeling.layer.make_native_layer", lambda *_: None)
        patch.setattr("dvi.modeling.int8.make_native_matrix", lambda *_: None)
        yield


@torch.no_grad()
def forward(model: TargetModel, cache: KvCache, segments: Sequence[Segment]) -> Tensor:
    """Logits [R, V] of the real positions, in segment order."""
    plan = model.plan(segments)
    hidden = model.deep(model.shallow(plan, cache), plan, cache)
    return model.logits(hidden)


def whole_cache(model: TargetModel, rows: int = 3, max_len: int = 200) -> KvCache:
    return model.new_cache(model.spec.num_layers, rows, max_len)


def random_ids(count: int, high: int, seed: int = 1) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(high, (count,), generator=generator).tolist())


def decode_in_widths(
    model: TargetModel, cache: KvCache, row: int, ids: Sequence[int], widths: Sequence[int]
) -> Tensor:
    """Logits [sum(widths), V] of a text that comes ``widths`` positions at a time."""
    logits: list[Tensor] = []
    position = 0
    for width in widths:
        segment = Segment(row, position, tuple(ids[position : position + width]))
        logits.append(forward(model, cache, [segment]))
        position += width
    return torch.cat(logits)
