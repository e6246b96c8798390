"""What the target held likely at the tokens of an answer, beside the one that it chose.

Owns the few likeliest ids of each position and the mean over several; does not know texts. A text
that was drawn says which token came once: another draw in the same place may well take another,
and these say which. Letters: n tokens or rows, S kept ids, C different ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dvi.types import Trace

LEAST_SHARE = 0.003  # of the likeliest id: what is less is passed over
KEPT_IDS = 16  # S: of narrow answers drawn at temperature .8 these hold all but a hundredth


@dataclass(frozen=True, slots=True)
class Shares:
    """The likeliest ids at each token and their shares of the mass at T = 1, 0.1 KB a token."""

    ids: NDArray[np.int32]  # [n, S]
    mass: NDArray[np.float16]  # [n, S]


class Row(NamedTuple):
    """One token's."""

    ids: NDArray[np.int32]  # [S]
    mass: NDArray[np.float16]  # [S]


def shares_of(trace: Trace) -> Shares:
    """Of a recorded answer, by its raw logits; fewer than S kept ids are filled up with none."""
    logits = trace.top_logits[:, :KEPT_IDS]
    mass = np.exp(logits - trace.logsumexp[:, None]).astype(np.float16)
    missing = ((0, 0), (0, KEPT_IDS - logits.shape[1]))
    return Shares(np.pad(trace.top_ids[:, :KEPT_IDS], missing, "edge"), np.pad(mass, missing))


def mean(
    rows: Sequence[Row | None], named: Sequence[tuple[int, int]], temperature: float
) -> dict[int, float]:
    """Share of each id that may well be drawn, the mean of the rows at ``temperature`` > 0.

    ``named``: of each row the id that was chosen and what it is called here; where no row is known
    it has all. Plain Python: a row has two or three such ids, for which array calls are slower.
    """
    shares: dict[int, float] = {}
    power = 1 / temperature
    for row, (theirs, ours) in zip(rows, named, strict=True):
        if row is None:
            shares[ours] = shares.get(ours, 0.0) + 1 / len(rows)
            continue
        mass = row.mass.tolist()  # descending
        least = LEAST_SHARE * mass[0]
        weights = [(one / mass[0]) ** power for one in mass if one >= least]
        scale = 1 / (sum(weights) * len(rows))
        for token, weight in zip(row.ids.tolist(), weights, strict=False):
            name = ours if token == theirs else token
            shares[name] = shares.get(name, 0.0) + weight * scale
    return shares
