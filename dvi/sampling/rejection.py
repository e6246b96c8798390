"""The other verification: accept a proposal with min(1, p / q), else draw from max(p - q, 0).

Owns speculative sampling of one position (Leviathan et al., arXiv 2211.17192; Chen et al.,
arXiv 2302.01318); does not know who proposed or what is committed. The token at a position then
has exactly the target's distribution p whatever q, provided that the proposal was drawn from q with
noise that nothing else has seen: proposal, acceptance and residual each have noise of their own
purpose. A proposal without a distribution (memory) counts as drawn from the one that holds it
alone. At T = 0 every distribution is one-hot and the rule is the greedy one.
Letters: V vocabulary; p and q, the papers' symbols, are ``target`` and ``draft``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dvi.sampling.choice import ChoicePoint, choose_row, point_key
from dvi.sampling.filters import Logits, masses, truncation_border
from dvi.sampling.noise import NUM_BITS, Purpose, gumbel_array, id_bits
from dvi.types import SamplingParams

Probabilities = NDArray[np.float64]


def choose_or_accept(
    row: Logits, point: ChoicePoint, proposed: int, draft_row: Logits | None
) -> int:
    """The token at ``point``: ``proposed`` if it is accepted, else another one.

    ``row`` [V] are the target's processed logits. ``draft_row`` [V] are the processed logits whose
    distribution under the same parameters ``proposed`` was drawn from; None says one-hot. Raises
    ValueError for a row without a finite logit.
    """
    if point.params.temperature == 0:
        return choose_row(row, point)
    target = distribution(row, point.params)
    if draft_row is None:
        draft = one_hot(row.size, proposed)
    else:
        draft = distribution(draft_row, point.params)
    if _uniform(point) < acceptance(target, draft)[proposed]:
        return proposed
    left = residual(target, draft)
    ids = np.flatnonzero(left)
    noise = gumbel_array(id_bits(point_key(point, Purpose.RESIDUAL), ids))
    return int(ids[(np.log(left[ids]) + noise).argmax()])


def distribution(row: Logits, params: SamplingParams) -> Probabilities:
    """[V] probabilities of what ``choose`` draws from ``row`` at a temperature above 0."""
    top = float(row.max())
    if not np.isfinite(top):
        raise ValueError(f"the largest logit of a row must be finite, got {top}")
    probabilities = masses(row, top, params.temperature)
    probabilities[row < truncation_border(row, params)] = 0
    probabilities /= probabilities.sum()
    return probabilities


def one_hot(size: int, token_id: int) -> Probabilities:
    """[V] the distribution that always proposes ``token_id``."""
    probabilities = np.zeros(size)
    probabilities[token_id] = 1
    return probabilities


def acceptance(target: Probabilities, draft: Probabilities) -> Probabilities:
    """[V] chance that each id is accepted once proposed, min(1, p / q); 0 where q is 0."""
    proposable = draft > 0
    chances = np.zeros_like(target)
    np.divide(target, draft, out=chances, where=proposable)
    return np.minimum(chances, 1.0, out=chances)


def residual(target: Probabilities, draft: Probabilities) -> Probabilities:
    """[V] max(p - q, 0), normalised: what a rejected position is drawn from.

    Where nothing is left, p = q but for rounding, so a reject is itself an accident of rounding;
    p is the answer then.
    """
    left = np.maximum(target - draft, 0.0)
    total = left.sum()
    return left / total if total > 0 else target


def _uniform(point: ChoicePoint) -> float:
    """The acceptance draw, in (0, 1)."""
    bits = id_bits(point_key(point, Purpose.ACCEPTANCE), 0)
    return (bits + 0.5) / NUM_BITS
