"""The choice rule: which token stands at a position, given the target's logits there.

Owns the arg-max of z + T * g over the kept ids, lowest id on a tie (ARCHITECTURE: one choice rule
for every token); does not know who proposed what. Scores are float64: the logits enter exactly, so
only equal scores tie. Letters: N rows, V vocabulary, C candidates of all rows together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.sampling.filters import truncation_border
from dvi.sampling.noise import GUMBEL_MAX, Purpose, gumbel, id_bits, row_key
from dvi.types import SamplingParams

_DRAFT_HEAD = 64  # ids of the draft that can be proposed


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

    Noise is computed only where it can matter: an id whose logit is more than T * GUMBEL_MAX below
    the score of the row's arg-max cannot win. At T = 0 that leaves the arg-max.
    """
    assert logits.shape[0] == len(points)
    tops, top_ids = logits.max(dim=-1)  # [N]
    top_values: list[float] = tops.tolist()
    if not all(map(math.isfinite, top_values)):
        raise ValueError(f"logits have no finite maximum: {top_values}")
    borders = torch.tensor(
        [truncation_border(row, at.params) for row, at in zip(logits, points, strict=True)],
        dtype=torch.float64,
        device=logits.device,
    )
    noise = _RowNoise(points, logits.device)
    least = tops.double() + noise.scaled(top_ids, torch.arange(len(points), device=logits.device))
    limits = torch.maximum(least - noise.temperatures * GUMBEL_MAX, borders)
    rows, ids = (logits >= _round_down(limits, logits.dtype)[:, None]).nonzero(as_tuple=True)  # [C]
    scores = logits[rows, ids].double()
    scores = torch.where(scores >= borders[rows], scores + noise.scaled(ids, rows), -math.inf)
    return _first_best(scores, rows, ids, len(points))


def choose_draft(logits: Tensor, points: Sequence[ChoicePoint]) -> list[int]:
    """The draft's proposal of every row: the same rule and noise over its top few ids.

    ``logits`` [N, V], raw draft logits. Top-k, top-p and min-p act on the top few as if these held
    all mass: cheap, and only the acceptance rate is at stake. A greedy row is an exact arg-max.
    """
    assert logits.shape[0] == len(points)
    if all(at.params.temperature == 0 for at in points):
        return logits.argmax(dim=-1).tolist()
    size = min(_DRAFT_HEAD, logits.shape[-1])
    head, ids = logits.topk(size)  # [N, size]
    return [
        choose_among(row, row_ids, at) for row, row_ids, at in zip(head, ids, points, strict=True)
    ]


def choose_among(logits: Tensor, ids: Tensor, point: ChoicePoint) -> int:
    """``choose`` for one row of which only ``logits`` [C] of ``ids`` [C] exist."""
    border = truncation_border(logits, point.params)
    scores = logits.double() + point.params.temperature * row_noise(point, ids)
    scores = torch.where(logits >= border, scores, -math.inf)
    return int(ids[scores == scores.max()].min())


def row_noise(point: ChoicePoint, ids: Tensor) -> Tensor:
    """Standard Gumbel noise of ``ids`` at ``point``, float64, of the shape of ``ids``."""
    first, second = _point_key(point)
    key = (torch.tensor(first, device=ids.device), torch.tensor(second, device=ids.device))
    return gumbel(id_bits(key, ids))


def choice_margin(logits_row: Tensor, point: ChoicePoint, other_id: int) -> float:
    """How near ``other_id`` was to being chosen, in logits.

    If it is kept, the gap of z + T * g to the choice; if not, its distance to the border.
    """
    border = truncation_border(logits_row, point.params)
    other = float(logits_row[other_id])
    if other < border:
        return border - other
    ids = torch.arange(logits_row.shape[-1], device=logits_row.device)
    scores = logits_row.double() + point.params.temperature * row_noise(point, ids)
    scores = torch.where(logits_row >= border, scores, -math.inf)
    return float(scores.max() - scores[other_id])


def _point_key(point: ChoicePoint) -> tuple[int, int]:
    params = point.params
    return row_key(params.seed, params.choice_index, Purpose.CHOICE, point.position)


class _RowNoise:
    """Keys and temperatures of a batch of points, as tensors."""

    def __init__(self, points: Sequence[ChoicePoint], device: torch.device) -> None:
        keys = torch.tensor([_point_key(at) for at in points], device=device)  # [N, 2] int64
        self.first, self.second = keys.unbind(1)
        self.temperatures = torch.tensor(
            [at.params.temperature for at in points], dtype=torch.float64, device=device
        )  # [N]

    def scaled(self, ids: Tensor, rows: Tensor) -> Tensor:
        """T * g of ``ids`` [C], each in the row ``rows`` [C]."""
        bits = id_bits((self.first[rows], self.second[rows]), ids)
        return self.temperatures[rows] * gumbel(bits)


def _round_down(limits: Tensor, dtype: torch.dtype) -> Tensor:
    """Values of ``dtype`` at most ``limits``: a bound for comparing without widening the logits."""
    narrow = limits.to(dtype)
    return torch.nextafter(narrow, torch.full_like(narrow, -math.inf))


def _first_best(scores: Tensor, rows: Tensor, ids: Tensor, num_rows: int) -> list[int]:
    """Lowest id among the best scores of each row; every row has a candidate."""
    best = scores.new_full((num_rows,), -math.inf).scatter_reduce(0, rows, scores, "amax")
    winners = scores == best[rows]
    lowest = ids.new_full((num_rows,), torch.iinfo(torch.int64).max)
    chosen: list[int] = lowest.scatter_reduce(0, rows[winners], ids[winners], "amin").tolist()
    return chosen
