"""The largest logits of each row, and the mass of all: what traces keep of a position.

Owns their arithmetic; does not know which positions were kept. In host memory it works row by row,
as the choice of tokens does: the tensor call for the largest of 49,152 logits fills 0.8 MB of
scratch.
Letters: C rows, V vocabulary, M kept ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dvi.native.top import top_candidates
from dvi.sampling.choice import host_rows
from dvi.sampling.filters import Logits, ids_at_least, kth_largest

_DEPTH = 64  # values a column of the first stage: it then sorts an array as small as the second one


@dataclass(frozen=True, slots=True)
class TopLogits:
    """Of C rows."""

    ids: NDArray[np.int32]  # [C, M], of the largest logits, descending
    logits: NDArray[np.float32]  # [C, M]
    logsumexp: NDArray[np.float32]  # [C], over the whole vocabulary


def top_logits(parts: Sequence[Tensor], count: int) -> TopLogits:
    """The ``count`` largest of every row, or all of them; each row has a finite one.

    ``parts`` are [n, V], their rows follow one another. In host memory the lowest id comes first on
    a tie.
    """
    count = min(count, parts[0].shape[-1])
    if parts[0].device.type != "cpu":
        return _top_of_device(torch.cat(list(parts)), count)
    rows = [row for part in parts for row in host_rows(part)]
    top = TopLogits(
        np.empty((len(rows), count), np.int32),
        np.empty((len(rows), count), np.float32),
        np.empty(len(rows), np.float32),
    )
    for place, row in enumerate(rows):
        found = top_candidates(row, count)
        ids = largest_ids(row, count) if found is None else largest_first(row, found[0], count)
        top.ids[place] = ids
        top.logits[place] = row[ids]
        top.logsumexp[place] = log_mass(row, row[ids[0]]) if found is None else found[1]
    return top


def largest_ids(row: Logits, count: int) -> NDArray[np.int64]:
    """Ids of the ``count`` largest of ``row`` [V], descending, the lowest id first on a tie.

    Of the maxima of as many columns, the ``count``-th largest is a bound that ``count`` values
    reach: so only what reaches it, little more than ``count`` ids, is sorted.
    """
    num_columns = row.size // _DEPTH
    border = -np.inf
    if num_columns >= count:
        columns = row[: num_columns * _DEPTH].reshape(_DEPTH, num_columns)
        border = kth_largest(columns.max(axis=0), count)
    return largest_first(row, ids_at_least(row, border), count)


def largest_first(row: Logits, ids: NDArray[Any], count: int) -> NDArray[Any]:
    """``count`` of ascending ``ids`` in the order of their logits, the lowest first on a tie."""
    return ids[np.argsort(-row[ids], kind="stable")[:count]]


def log_mass(row: Logits, top: np.floating[Any]) -> float:
    """log(sum(exp(row))) of ``row`` [V], whose largest value is ``top``; a sum of its own width."""
    shifted = row - top
    return float(top) + math.log(np.exp(shifted, out=shifted).sum())


def _top_of_device(logits: Tensor, count: int) -> TopLogits:
    """The same by tensor calls: one transfer of each result, whatever the number of rows."""
    top = logits.topk(count)
    return TopLogits(
        top.indices.int().numpy(force=True),
        top.values.float().numpy(force=True),
        logits.logsumexp(-1).float().numpy(force=True),
    )
