"""How likely is a proposal to be accepted? Live counts by what speaks for it.

Owns the tables; knows neither costs nor sessions. No clocks: a run of the same rounds gives the
same tables. Every rate is of a proposal whose predecessors in the round were accepted, which is
just what a proposal's fate tells; so expected accepted length is the sum of products.
"""

from __future__ import annotations

import math

from dvi.decoding.correction import Correction
from dvi.decoding.memory_rates import HEAT_TEMPERATURES, MemoryRates
from dvi.decoding.rate import Rate
from dvi.drafting.base import Proposal
from dvi.types import Source

# Weight of the teacher-forced estimate that is published with a version.
PUBLISHED_WEIGHT = 24.0
# What an exchange of weights leaves of the counts.
KEPT_UNPUBLISHED = 0.5
KEPT_PUBLISHED = 0.02
# Outcomes that a position counts for against one confidence, and both against their own bucket:
# buckets are many, and noise in them stops drafts that would pay.
CONFIDENCE_WEIGHT = 8.0
BUCKET_WEIGHT = 16.0
UNTRIED = 0.5  # acceptance of a draft nobody has seen: the benefit of the doubt, soon corrected
NUM_CONFIDENCES = 10


class NeuralRates:
    """Acceptance of the learned draft, each rate leaning on the one before it: of all proposals, by
    position, by confidence, by both. ``parent`` has the rates of another kind to begin from.
    """

    def __init__(self, max_draft_len: int, parent: NeuralRates | None = None) -> None:
        self._parent = parent
        self._published: float | None = None
        self._all = Rate()
        self._positions = [Rate() for _ in range(max_draft_len)]
        self._confidences = [Rate() for _ in range(NUM_CONFIDENCES)]
        self._buckets = [[Rate() for _ in range(NUM_CONFIDENCES)] for _ in range(max_draft_len)]

    def new_version(self, published: float | None) -> None:
        """Other weights draft from now on: with a figure of their own, little of the old counts."""
        self._published = published
        kept = KEPT_UNPUBLISHED if published is None else KEPT_PUBLISHED
        rates = (self._all, *self._positions, *self._confidences)
        for rate in (*rates, *(r for row in self._buckets for r in row)):
            rate.fade(kept)

    def overall(self) -> float:
        """Acceptance of any proposal."""
        if self._published is not None:
            return self._all.value(self._published, PUBLISHED_WEIGHT)
        return self._all.value(UNTRIED if self._parent is None else self._parent.overall())

    def before(self, index: int) -> float:
        """Acceptance of proposal ``index`` of a round before it is drafted."""
        return self._positions[index].value(self.overall())

    def after(self, index: int, logprob: float) -> float:
        """Acceptance of proposal ``index``, drafted with ``logprob``."""
        bucket = confidence(logprob)
        before = self._confidences[bucket].value(self.before(index), CONFIDENCE_WEIGHT)
        return self._buckets[index][bucket].value(before, BUCKET_WEIGHT)

    def add(self, index: int, logprob: float, *, hit: bool) -> None:
        """Count the fate of proposal ``index``."""
        self._all.add(hit=hit)
        self._positions[index].add(hit=hit)
        bucket = confidence(logprob)
        self._confidences[bucket].add(hit=hit)
        self._buckets[index][bucket].add(hit=hit)


class Calibration:
    """Rates of both sources by kind of request (``heat``). Decode thread only.

    A learned draft takes part in the request's own draw, so its acceptance hardly depends on the
    temperature: it has rates for greedy and for sampled requests. A memory guesses. Sampled kinds
    begin from what greedy requests showed; greedy ones take nothing from them.
    """

    def __init__(self, max_draft_len: int) -> None:
        greedy_neural = NeuralRates(max_draft_len)
        self._neural = (greedy_neural, NeuralRates(max_draft_len, greedy_neural))
        _, *sampled = HEAT_TEMPERATURES
        greedy = MemoryRates()
        common = Correction(greedy.correction)
        self._memory = (greedy, *(MemoryRates(temperature, common) for temperature in sampled))
        self._adapter_version = 0

    @property
    def adapter_version(self) -> int:
        """The version that the rates of the learned draft are of."""
        return self._adapter_version

    def neural(self, heat: int) -> NeuralRates:
        """Rates of the learned draft."""
        return self._neural[heat > 0]

    def memory(self, heat: int) -> MemoryRates:
        """Rates of the memory."""
        return self._memory[heat]

    def follow_version(self, version: int, published: float | None) -> None:
        """Notice an exchange of weights."""
        if version != self._adapter_version:
            self._adapter_version = version
            for rates in self._neural:
                rates.new_version(published)

    def expected(self, proposal: Proposal, num_judged: int, heat: int) -> list[float]:
        """What was to be expected of each judged proposal by what spoke for it."""
        if proposal.source is Source.MEMORY:
            memory = self.memory(heat)
            return [memory.value(match) for match in proposal.matches[:num_judged]]
        neural = self.neural(heat)
        scores = proposal.logprobs[:num_judged]
        return [neural.after(index, score) for index, score in enumerate(scores)]

    def learn(self, proposal: Proposal, num_judged: int, num_accepted: int, heat: int) -> None:
        """Count the fate of the judged proposals of one round."""
        if proposal.source is Source.MEMORY:
            memory = self.memory(heat)
            for index, match in enumerate(proposal.matches[:num_judged]):
                memory.add(match, hit=index < num_accepted)
        else:
            neural = self.neural(heat)
            for index, score in enumerate(proposal.logprobs[:num_judged]):
                neural.add(index, score, hit=index < num_accepted)


def confidence(logprob: float) -> int:
    """Bucket of a draft's own probability."""
    return min(int(math.exp(logprob) * NUM_CONFIDENCES), NUM_CONFIDENCES - 1)
