"""Truncation: which ids a sampled token may take, as one border in logits.

Owns top-k, top-p and min-p; does not know the noise. Each filter keeps the ids whose logit is at
least some value, so the kept set is ``{id : logit >= border}`` with the highest of the three
borders, and ids that tie at the border are kept together: no order among equal logits decides
anything. All arithmetic is in float64. Letters: V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dvi.types import SamplingParams

_FIRST_HEAD = 1024  # ids of the first partial sort; a nucleus of .95 at T = 1 has 619 at p95


def truncation_border(row: Tensor, params: SamplingParams) -> float:
    """Smallest logit that is kept, -inf if all are.

    ``row`` [V] are raw logits; the filters act on z / T in the order top-k, then top-p on the
    probabilities of what top-k left, then min-p relative to the top probability. The arg-max is
    always kept. At T = 0 nothing but the arg-max can win, so there is nothing to truncate.
    """
    if params.temperature == 0 or not has_filter(params):
        return -math.inf
    border = -math.inf
    if 0 < params.top_k < row.shape[-1]:
        border = float(row.topk(params.top_k).values[-1])
    if params.top_p < 1:
        left = row if border == -math.inf else row[row >= border]
        border = max(border, nucleus_border(left, params.temperature, params.top_p))
    if params.min_p > 0:
        border = max(border, float(row.max()) + params.temperature * math.log(params.min_p))
    return border


def has_filter(params: SamplingParams) -> bool:
    """Whether some filter may drop an id."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def nucleus_border(logits: Tensor, temperature: float, top_p: float) -> float:
    """Smallest logit of the shortest descending prefix that holds ``top_p`` of the mass.

    ``logits`` [any] in any order. No full sort: the ids below top - T log(V / (1 - top_p)) hold
    less than 1 - top_p of the mass together, so the border is never among them, and the rest is
    sorted from the top only as far as needed.
    """
    top = float(logits.max())
    wanted = top_p * float(((logits.double() - top) / temperature).exp().sum())
    reach = temperature * math.log(logits.numel() / (1 - top_p))
    candidates = logits[logits >= top - reach]
    size = _FIRST_HEAD
    while True:
        head = candidates.topk(min(size, candidates.numel())).values.double()
        mass = ((head - top) / temperature).exp().cumsum(0)
        if float(mass[-1]) >= wanted or head.numel() == candidates.numel():
            last = int(torch.searchsorted(mass, wanted))
            return float(head[min(last, head.numel() - 1)])
        size *= 8
