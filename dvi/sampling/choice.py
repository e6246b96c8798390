"""The choice rule: which token stands at a position, given the target's logits there.

Owns the arg-max of z + T * g over the kept ids, lowest id on a tie (ARCHITECTURE: one choice rule
for every token); does not know who proposed what. Scores are float64: the logits enter exactly, so
only equal scores tie. The work is done row by row in host memory, a few hundred ids a row, which
numpy does faster than tensor calls and without waking a thread pool.
Letters: N rows, V vocabulary, C candidate ids of one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dvi.sampling.filters import Logits, ids_at_least, kth_largest, least_value, truncation_border
from dvi.sampling.noise import GUMBEL_MAX, Purpose, gumbel_array, id_bits, least_bits, row_key
from dvi.types import SamplingParams

_NEAR = 6.0  # ids within so many T of the top are scored whatever their noise: some 20 of 49,152
_DRAFT_REACH = 8.0  # a draft proposes ids within so many T of its top: some 50, e^-8 = 3e-4 each
_DRAFT_IDS = 1024  # and not more than so many, which only a draft that knows nothing reaches
_SLACK = 1e-9  # far above what two float64 logarithms of different libraries differ by


@dataclass(frozen=True, slots=True)
class ChoicePoint:
    """One token to choose: how, and at which absolute index of prompt + output."""

    params: SamplingParams
    position: int


def choose(logits: Tensor, points: Sequence[ChoicePoint]) -> list[int]:
    """The target's token of every row: arg-max of z + T * g over kept ids, lowest id on a tie.

    ``logits`` [N, V] float32 or float64, raw; -inf where an id does not exist, never chosen. A row
    is a function of its own logits and point alone. Raises ValueError for a row whose largest
    logit is not finite.
    """
    if _decided_there(logits, points):
        return _top_ids_of_device(logits)
    rows = host_rows(logits)
    top_ids = _top_ids(rows)
    return [
        _choose_one(row, top_id, at) for row, top_id, at in zip(rows, top_ids, points, strict=True)
    ]


def choose_draft(logits: Tensor, points: Sequence[ChoicePoint]) -> list[int]:
    """The draft's proposal of every row: the same rule and noise over the ids near its top.

    ``logits`` [N, V], raw draft logits. Top-k, top-p and min-p act on the near ids as if these held
    all mass: cheap, and only the acceptance rate is at stake. A greedy row is an exact arg-max.
    Raises ValueError like ``choose``.
    """
    if _decided_there(logits, points):
        return _top_ids_of_device(logits)
    rows = host_rows(logits)
    top_ids = _top_ids(rows)
    return [
        _propose_one(row, top_id, at) for row, top_id, at in zip(rows, top_ids, points, strict=True)
    ]


def choose_row(row: Logits, point: ChoicePoint, purpose: Purpose = Purpose.CHOICE) -> int:
    """``choose`` for one row [V] of host memory, after whatever was done to its logits.

    With noise of another purpose this is an independent exact draw from the same distribution.
    Raises ValueError like ``choose``.
    """
    return _choose_one(row, _top_ids(row[None])[0], point, purpose)


def choose_draft_row(row: Logits, point: ChoicePoint) -> int:
    """``choose_draft`` for one row [V] of host memory."""
    return _propose_one(row, _top_ids(row[None])[0], point)


def choose_among(ids: NDArray[np.int64], logits: Logits, point: ChoicePoint) -> int:
    """``choose_draft`` where only ``ids`` [C] may stand: the place of the proposal among them.

    ``ids`` ascend; ``logits`` [C] are theirs, up to a constant.
    """
    kept = ids_at_least(logits, truncation_border(logits, point.params))
    return _best(logits, kept, point.params.temperature, point_noise(point, ids[kept]))


def point_noise(point: ChoicePoint, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise g of ``ids`` [C] at ``point``."""
    return gumbel_array(id_bits(point_key(point, Purpose.CHOICE), ids))


def host_rows(logits: Tensor) -> Logits:
    """``logits`` as an array; no copy if they are in host memory."""
    rows: Logits = logits.detach().cpu().numpy()
    return rows


def _choose_one(
    row: Logits, top_id: int, point: ChoicePoint, purpose: Purpose = Purpose.CHOICE
) -> int:
    """``choose`` for one row [V] with arg-max ``top_id``.

    The arg-max scores z + T * g itself, so an id more than T * GUMBEL_MAX below that score cannot
    win, and one that is _NEAR * T below the top needs rare bits: most ids are never scored.
    """
    temperature = point.params.temperature
    if temperature == 0:  # T * g = 0: only the arg-max is left, no noise is needed to know it
        return top_id
    key = point_key(point, purpose)
    top = float(row[top_id])
    top_noise = float(gumbel_array(np.array(id_bits(key, top_id)))) - _SLACK
    limit = max(truncation_border(row, point.params), top + temperature * (top_noise - GUMBEL_MAX))
    ids = ids_at_least(row, limit)
    bits = id_bits(key, ids)
    near = row[ids] >= least_value(row, top - _NEAR * temperature)
    can_win = near | (bits >= least_bits(top_noise + _NEAR))
    return _best(row, ids[can_win], temperature, gumbel_array(bits[can_win]))


def _propose_one(row: Logits, top_id: int, point: ChoicePoint) -> int:
    """``choose_draft`` for one row [V] with arg-max ``top_id``."""
    temperature = point.params.temperature
    if temperature == 0:
        return top_id
    limit = float(row[top_id]) - _DRAFT_REACH * temperature
    ids = ids_at_least(row, limit)
    if ids.size > _DRAFT_IDS:
        ids = ids[ids_at_least(row[ids], kth_largest(row[ids], _DRAFT_IDS))]
    near = row[ids]
    ids = ids[ids_at_least(near, truncation_border(near, point.params))]
    return _best(row, ids, temperature, point_noise(point, ids))


def _best(
    row: Logits, ids: NDArray[np.int64], temperature: float, noise: NDArray[np.float64]
) -> int:
    """The id of the best score; ids ascend, so the first of equal scores is the lowest id."""
    scores = row[ids].astype(np.float64) + temperature * noise
    return int(ids[scores.argmax()])


def _decided_there(logits: Tensor, points: Sequence[ChoicePoint]) -> bool:
    """Whether the rows need not leave their device: all greedy, so their tops are enough."""
    return logits.device.type != "cpu" and all(one.params.temperature == 0 for one in points)


def _top_ids_of_device(logits: Tensor) -> list[int]:
    """``_top_ids`` by the device: of equal values its ``max`` gives the first."""
    found = logits.max(-1)
    _require_finite(found.values.tolist())
    top_ids: list[int] = found.indices.tolist()
    return top_ids


def _top_ids(rows: Logits) -> list[int]:
    """Arg-max of every row, the lowest id on a tie."""
    top_ids: list[int] = rows.argmax(axis=-1).tolist()  # a NaN counts as largest
    _require_finite([float(row[top_id]) for row, top_id in zip(rows, top_ids, strict=True)])
    return top_ids


def _require_finite(tops: Sequence[float]) -> None:
    if not all(map(math.isfinite, tops)):
        raise ValueError(f"the largest logit of a row must be finite, got {tops}")


def point_key(point: ChoicePoint, purpose: Purpose) -> tuple[int, int]:
    """Row key of the noise at ``point``."""
    params = point.params
    return row_key(params.seed, params.choice_index, purpose, point.position)
