"""Truncation: which ids a sampled token may take, as one border in logits.

Owns top-k, top-p and min-p; does not know the noise. Each filter keeps the ids whose logit is at
least some value, so the kept set is ``{id : logit >= border}`` with the highest of the three
borders, and ids that tie at the border are kept together: no order among equal logits decides
anything. Masses are float64. Letters: V vocabulary, C some of its ids.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dvi.types import SamplingParams

Logits = NDArray[np.float32] | NDArray[np.float64]

_FIRST_HEAD = 1024  # ids of the first partial sort; a nucleus of .95 at T = 1 has 619 at p95


def truncation_border(row: Logits, params: SamplingParams) -> float:
    """Smallest logit that is kept, -inf if all are.

    ``row`` [V] are raw logits; the filters act on z / T in the order top-k, then top-p on the
    probabilities of what top-k left, then min-p relative to the top probability. The arg-max is
    always kept. At T = 0 nothing but the arg-max can win, so there is nothing to truncate.
    """
    if params.temperature == 0:
        return -math.inf
    border = -math.inf
    if 0 < params.top_k < row.size:
        border = kth_largest(row, params.top_k)
    if params.top_p < 1:
        left = row if border == -math.inf else at_least(row, border)
        border = max(border, nucleus_border(left, params.temperature, params.top_p))
    if params.min_p > 0:
        border = max(border, float(row.max()) + params.temperature * math.log(params.min_p))
    return border


def kth_largest(row: Logits, count: int) -> float:
    """The ``count``-th largest of ``row`` [C], equal values counted one by one."""
    place = row.size - count
    return float(np.partition(row, place)[place])


def nucleus_border(row: Logits, temperature: float, top_p: float) -> float:
    """Smallest logit of the shortest descending prefix that holds ``top_p`` of the mass.

    ``row`` [C] in any order. No full sort: the ids below top - T log(C / (1 - top_p)) hold less
    than 1 - top_p of the mass together, so the border is never among them, and of the rest only
    the top is sorted, as far as needed.
    """
    top = float(row.max())
    wanted = top_p * float(masses(row, top, temperature).sum())
    reach = temperature * math.log(row.size / (1 - top_p))
    candidates = at_least(row, top - reach)
    size = _FIRST_HEAD
    while True:
        head = _descending_head(candidates, size)
        covered = masses(head, top, temperature).cumsum()
        if covered[-1] >= wanted or head.size == candidates.size:
            place = int(np.searchsorted(covered, wanted))
            return float(head[min(place, head.size - 1)])
        size *= 8


def masses(row: Logits, top: float, temperature: float) -> NDArray[np.float64]:
    """exp((z - top) / T) of ``row`` [C], float64."""
    shifted = row.astype(np.float64)
    shifted -= top
    shifted *= 1 / temperature
    return np.exp(shifted, out=shifted)


def ids_at_least(row: Logits, limit: float) -> NDArray[np.int64]:
    """Ascending ids whose logit in ``row`` [C] is at least ``limit``."""
    return np.flatnonzero(row >= least_value(row, limit))


def at_least(row: Logits, limit: float) -> Logits:
    """The values of ``row`` [C] that are at least ``limit``, in their order."""
    return row[ids_at_least(row, limit)]


def least_value(row: Logits, limit: float) -> np.floating[Any]:
    """The least value of ``row``'s dtype that is at least ``limit``.

    Comparing with it says exactly what comparing with ``limit`` says, without widening the row.
    """
    value: np.floating[Any] = row.dtype.type(limit)
    return value if float(value) >= limit else np.nextafter(value, row.dtype.type(math.inf))


def _descending_head(values: Logits, size: int) -> Logits:
    place = max(0, values.size - size)
    head: Logits = np.sort(np.partition(values, place)[place:])[::-1]
    return head
