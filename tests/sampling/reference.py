"""The choice rule spelled out over the whole vocabulary: slow, and the specification."""

from __future__ import annotations

import math

import numpy as np

from dvi.sampling import ChoicePoint, Purpose
from dvi.sampling.noise import id_bits, row_key
from dvi.types import SamplingParams


def kept_ids(row: np.ndarray, params: SamplingParams) -> set[int]:
    """Top-k, then top-p over the renormalised rest, then min-p; ties at a border stay together."""
    ids = [token_id for token_id in range(len(row)) if row[token_id] > -math.inf]
    if params.temperature == 0:
        return set(ids)
    ids.sort(key=lambda token_id: -row[token_id])
    if 0 < params.top_k < len(ids):
        border = row[ids[params.top_k - 1]]
        ids = [token_id for token_id in ids if row[token_id] >= border]
    if params.top_p < 1:
        top = float(row[ids[0]])
        mass = np.exp((row[ids].astype(np.float64) - top) / params.temperature)
        share = np.cumsum(mass) / mass.sum()
        border = row[ids[min(int(np.argmax(share >= params.top_p)), len(ids) - 1)]]
        ids = [token_id for token_id in ids if row[token_id] >= border]
    if params.min_p > 0:
        border = float(row[ids[0]]) + params.temperature * math.log(params.min_p)
        ids = [token_id for token_id in ids if float(row[token_id]) >= border]
    return set(ids)


def noise_of(point: ChoicePoint, num_ids: int) -> np.ndarray:
    params = point.params
    key = row_key(params.seed, params.choice_index, Purpose.CHOICE, point.position)
    bits = id_bits(key, np.arange(num_ids))
    return -np.log(-np.log((bits + 0.5) / 2**23))


def scores_of(row: np.ndarray, point: ChoicePoint) -> np.ndarray:
    """z + T * g of kept ids, -inf elsewhere."""
    scores = row.astype(np.float64) + point.params.temperature * noise_of(point, len(row))
    kept = np.zeros(len(row), dtype=bool)
    kept[list(kept_ids(row, point.params))] = True
    return np.where(kept, scores, -math.inf)


def choose_slowly(row: np.ndarray, point: ChoicePoint) -> int:
    return int(np.argmax(scores_of(row, point)))  # the first of equal scores: the lowest id
