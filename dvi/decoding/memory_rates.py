"""How likely is a memory's proposal to be accepted? By match length, agreement and temperature.

Owns the prior of each kind of match and how counts move it; knows neither costs nor sessions. What
few counts say is shared: the priors of all match lengths are corrected together, each sampled
temperature begins from the other sampled ones, and only then a bucket has a say of its own.
"""

from __future__ import annotations

from dvi.decoding.correction import Correction
from dvi.decoding.rate import Rate
from dvi.drafting.base import Match
from dvi.types import SamplingParams

# Match lengths that share a bucket: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more.
LENGTH_STEPS = (1, 2, 3, 4, 6, 9, 16)
# What a longest match of such a length is worth before any count: from text that repeats itself.
LENGTH_PRIORS = (0.15, 0.3, 0.4, 0.5, 0.65, 0.75, 0.8)
# Shares of the occurrences that went on with the proposal: at most this. The last is of one
# occurrence; several have a bucket of their own behind it.
SHARE_STEPS = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 1.0)
# Sampled requests of similar temperature are counted together: up to .4, up to .85, above.
HEAT_STEPS = (0.4, 0.85)
HEAT_TEMPERATURES = (0.0, 0.25, 0.7, 1.0)  # what stands for each kind; the first is greedy
# A guess is accepted as often as the target draws it. At temperature T a sampled request begins
# from 1 / (1 + .35 T) of the greedy acceptance: .80 at .7 and .74 at 1, near the .85 and .73 that a
# likeliest token was measured to keep of a good draft's acceptance.
HEAT_LOSS = 0.35
BUCKET_WEIGHT = 8.0  # outcomes that the corrected prior counts for against a bucket's own
MOST = 0.98  # nothing is certain


class MemoryRates:
    """Acceptance of the memory for requests of one kind.

    ``temperature`` stands for the kind; ``common`` is the correction of several kinds, which all of
    them begin from and add to.
    """

    def __init__(self, temperature: float = 0.0, common: Correction | None = None) -> None:
        scale = 1 / (1 + HEAT_LOSS * temperature)
        self._priors = [prior * scale for prior in LENGTH_PRIORS]
        self._common = common
        self.correction = Correction(common)
        self._all = Rate()
        self._buckets = [[Rate() for _ in range(len(SHARE_STEPS) + 1)] for _ in LENGTH_STEPS]

    def value(self, match: Match) -> float:
        """Acceptance of a proposal that ``match`` speaks for."""
        row = length_bucket(match)
        before = self.correction.value(self._priors[row] * trust(match))
        return self._buckets[row][share_bucket(match)].value(min(before, MOST), BUCKET_WEIGHT)

    def overall(self, untried: float) -> float:
        """Acceptance of what was proposed of late; ``untried`` before anything was."""
        return self._all.value(untried)

    def add(self, match: Match, *, hit: bool) -> None:
        """Count the fate of a proposal."""
        row = length_bucket(match)
        self._all.add(hit=hit)
        prior = self._priors[row] * trust(match)
        self.correction.add(prior, hit=hit)
        if self._common is not None:
            self._common.add(prior, hit=hit)
        self._buckets[row][share_bucket(match)].add(hit=hit)


def heat(params: SamplingParams) -> int:
    """Kind of request: 0 where nothing is drawn, then by temperature."""
    if params.temperature == 0 or params.top_k == 1:
        return 0
    return 1 + sum(params.temperature > step for step in HEAT_STEPS)


def trust(match: Match) -> float:
    """What the occurrences that went on otherwise leave of a match's prior."""
    return 0.5 + match.agreed / match.total / 2


def length_bucket(match: Match) -> int:
    """Index of the last step that the match reaches."""
    row = 0
    while row + 1 < len(LENGTH_STEPS) and match.length >= LENGTH_STEPS[row + 1]:
        row += 1
    return row


def share_bucket(match: Match) -> int:
    """Index of the first step that is not exceeded; of several that agree, one more."""
    share = match.agreed / match.total
    row = next((i for i, step in enumerate(SHARE_STEPS) if share <= step), len(SHARE_STEPS) - 1)
    return row + (row == len(SHARE_STEPS) - 1 and match.total > 1)
