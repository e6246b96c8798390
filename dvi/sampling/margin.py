"""How near another token was to being chosen: what reports of near-ties print.

Owns distances in logits; does not choose. A distance d means that moving some logits by d / 2 up
and the others by d / 2 down makes the difference, so rounding noise of size e explains distances
up to 2e. Letters: V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from dvi.sampling.choice import ChoicePoint, host_rows, point_noise
from dvi.sampling.filters import Logits, kth_largest, masses, truncation_border
from dvi.types import SamplingParams


def choice_margin(logits_row: Tensor, point: ChoicePoint, other_id: int) -> float:
    """Distance, in logits, from the choice at ``point`` to ``other_id``; 0 for the choice itself.

    ``other_id`` would have to be kept, and then either to close the gap of z + T * g or to see the
    choice dropped. So if both are kept with room to spare this is the gap, and if the kept sets
    differ it is the distance to the truncation border. ``logits_row`` [V] as in ``choose``.
    """
    row = host_rows(logits_row)
    params = point.params
    scores = row.astype(np.float64)
    if params.temperature > 0:
        scores += params.temperature * point_noise(point, np.arange(row.size))
    border = truncation_border(row, params)
    choice = int(np.where(row >= border, scores, -math.inf).argmax())
    if choice == other_id:
        return 0.0
    to_enter = max(0.0, -border_distance(row, params, other_id))
    to_drop_choice = border_distance(row, params, choice)
    to_win = max(0.0, float(scores[choice] - scores[other_id]))
    return max(to_enter, min(to_win, to_drop_choice))


def border_distance(row: Logits, params: SamplingParams, token_id: int) -> float:
    """Distance of an id of ``row`` [V] to the truncation border; negative if it is not kept.

    The smallest over the three filters; inf if none can drop it.
    """
    if params.temperature == 0:
        return math.inf
    value = float(row[token_id])
    distance, left = math.inf, row
    if 0 < params.top_k < row.size:
        border = kth_largest(row, params.top_k)
        left = row[row >= border]
        distance = _step_distance(row, border, value)
    if params.top_p < 1:
        distance = min(distance, _nucleus_distance(left, params, value))
    if params.min_p > 0:
        others = np.delete(row, token_id)  # the top itself is dropped once another is far above it
        top = float(others.max()) if others.size else -math.inf
        distance = min(distance, value - top - params.temperature * math.log(params.min_p))
    return distance


def _step_distance(row: Logits, border: float, value: float) -> float:
    """To the other side of a border that lies between two ranks."""
    if value < border:
        return value - border
    below = row[row < border]
    return value - float(below.max()) if below.size else math.inf


def _nucleus_distance(row: Logits, params: SamplingParams, value: float) -> float:
    """An id is kept while the mass above it is less than ``top_p`` of all: odds(above) < odds(p).

    Logits above it and all others moving apart by d change these odds by the factor exp(d / T), and
    ids within d of it change their side. So the distance is the least d at which both together
    carry the odds across odds(p).
    """
    weights = masses(row, float(row.max()), params.temperature)
    above = float(weights[row > value].sum())
    total = float(weights.sum())
    kept = above < params.top_p * total
    crossing = row <= value if kept else row > value
    gaps = np.abs(row[crossing].astype(np.float64) - value)
    order = gaps.argsort()[1:] if kept else gaps.argsort()  # the id itself is the first of gap 0
    crossed = np.concatenate([[0.0], weights[crossing][order].cumsum()])
    upper = np.maximum(above + crossed if kept else above - crossed, 0.0)
    with np.errstate(divide="ignore"):
        log_odds = np.log(upper) - np.log(np.maximum(total - upper, 0.0))
    missing = params.temperature * (log_odds - math.log(params.top_p / (1 - params.top_p)))
    needed = -missing if kept else missing
    distance = float(np.maximum(np.concatenate([[0.0], gaps[order]]), needed).min())
    return distance if kept else -distance
