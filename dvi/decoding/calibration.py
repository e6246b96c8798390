"""How likely is a proposal to be accepted? Live counts by what speaks for it.

Owns the tables; knows neither costs nor sessions. No clocks: a run of the same rounds gives the
same tables. Every rate is of a proposal whose predecessors in the round were accepted, which is
just what a proposal's fate tells; so expected accepted length is the sum of products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dvi.drafting.base import Match, Proposal
from dvi.types import Source

# Outcomes a bucket looks back on. Long enough to tell .5 from .6, short enough to follow a stream.
WINDOW = 200.0
# Weight of what is believed before a bucket has outcomes of its own.
PRIOR_WEIGHT = 4.0
# Weight of the teacher-forced estimate that is published with a version.
PUBLISHED_WEIGHT = 24.0
# What an exchange of weights leaves of the counts.
KEPT_UNPUBLISHED = 0.5
KEPT_PUBLISHED = 0.02
UNTRIED = 0.5  # acceptance of a draft nobody has seen: the benefit of the doubt, soon corrected
NUM_CONFIDENCES = 10
# Match lengths that share a bucket: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more.
LENGTH_STEPS = (1, 2, 3, 4, 6, 9, 16)
# What a longest match of such a length is worth before any count: from text that repeats itself.
LENGTH_PRIORS = (0.15, 0.3, 0.4, 0.5, 0.65, 0.75, 0.8)
# Shares of the occurrences that went on with the proposal: at most this.
SHARE_STEPS = (0.5, 0.8, 1.0)


@dataclass(slots=True)
class Rate:
    """Decayed hits and outcomes."""

    hits: float = 0.0
    total: float = 0.0

    def add(self, *, hit: bool) -> None:
        """Count one outcome."""
        kept = 1 - 1 / WINDOW
        self.hits = self.hits * kept + hit
        self.total = self.total * kept + 1

    def value(self, prior: float, weight: float = PRIOR_WEIGHT) -> float:
        """The rate, leaning on ``prior`` as if it were ``weight`` outcomes."""
        return (self.hits + prior * weight) / (self.total + weight)

    def fade(self, share: float) -> None:
        """Believe what was counted only in part."""
        self.hits *= share
        self.total *= share


class NeuralRates:
    """Acceptance of the learned draft: of all, by position, by position and confidence."""

    def __init__(self, max_draft_len: int) -> None:
        self._published: float | None = None
        self._all = Rate()
        self._positions = [Rate() for _ in range(max_draft_len)]
        self._buckets = [[Rate() for _ in range(NUM_CONFIDENCES)] for _ in range(max_draft_len)]

    def new_version(self, published: float | None) -> None:
        """Other weights draft from now on: with a figure of their own, little of the old counts."""
        self._published = published
        kept = KEPT_UNPUBLISHED if published is None else KEPT_PUBLISHED
        for rate in (self._all, *self._positions, *(r for row in self._buckets for r in row)):
            rate.fade(kept)

    def before(self, index: int) -> float:
        """Acceptance of proposal ``index`` of a round before it is drafted."""
        if self._published is None:
            overall = self._all.value(UNTRIED)
        else:
            overall = self._all.value(self._published, PUBLISHED_WEIGHT)
        return self._positions[index].value(overall)

    def after(self, index: int, logprob: float) -> float:
        """Acceptance of proposal ``index``, drafted with ``logprob``."""
        return self._buckets[index][confidence(logprob)].value(self.before(index))

    def add(self, index: int, logprob: float, *, hit: bool) -> None:
        """Count the fate of proposal ``index``."""
        self._all.add(hit=hit)
        self._positions[index].add(hit=hit)
        self._buckets[index][confidence(logprob)].add(hit=hit)


class MemoryRates:
    """Acceptance of the memory by match length and by the share of occurrences that agree."""

    def __init__(self) -> None:
        self._all = Rate()
        self._lengths = [Rate() for _ in LENGTH_STEPS]
        self._buckets = [[Rate() for _ in range(len(SHARE_STEPS) + 1)] for _ in LENGTH_STEPS]

    def value(self, match: Match) -> float:
        """Acceptance of a proposal that ``match`` speaks for."""
        row, column = length_bucket(match), share_bucket(match)
        share = match.agreed / match.total
        length_rate = self._lengths[row].value(LENGTH_PRIORS[row])
        return self._buckets[row][column].value(length_rate * (0.5 + share / 2))

    def overall(self) -> float:
        """Acceptance of what was proposed of late."""
        return self._all.value(UNTRIED)

    def add(self, match: Match, *, hit: bool) -> None:
        """Count the fate of a proposal."""
        row = length_bucket(match)
        self._all.add(hit=hit)
        self._lengths[row].add(hit=hit)
        self._buckets[row][share_bucket(match)].add(hit=hit)


class Calibration:
    """Rates of both sources, greedy and sampled requests apart. Decode thread only."""

    def __init__(self, max_draft_len: int) -> None:
        self._neural = (NeuralRates(max_draft_len), NeuralRates(max_draft_len))
        self._memory = (MemoryRates(), MemoryRates())
        self._adapter_version = 0

    def neural(self, *, sampled: bool) -> NeuralRates:
        """Rates of the learned draft."""
        return self._neural[sampled]

    def memory(self, *, sampled: bool) -> MemoryRates:
        """Rates of the memory."""
        return self._memory[sampled]

    def follow_version(self, version: int, published: float | None) -> None:
        """Notice an exchange of weights."""
        if version != self._adapter_version:
            self._adapter_version = version
            for rates in self._neural:
                rates.new_version(published)

    def expected(self, proposal: Proposal, num_judged: int, *, sampled: bool) -> list[float]:
        """What was to be expected of each judged proposal by what spoke for it."""
        if proposal.source is Source.MEMORY:
            memory = self._memory[sampled]
            return [memory.value(match) for match in proposal.matches[:num_judged]]
        neural = self._neural[sampled]
        scores = proposal.logprobs[:num_judged]
        return [neural.after(index, score) for index, score in enumerate(scores)]

    def learn(
        self, proposal: Proposal, num_judged: int, num_accepted: int, *, sampled: bool
    ) -> None:
        """Count the fate of the judged proposals of one round."""
        if proposal.source is Source.MEMORY:
            for index, match in enumerate(proposal.matches[:num_judged]):
                self._memory[sampled].add(match, hit=index < num_accepted)
        else:
            for index, score in enumerate(proposal.logprobs[:num_judged]):
                self._neural[sampled].add(index, score, hit=index < num_accepted)


def confidence(logprob: float) -> int:
    """Bucket of a draft's own probability."""
    return min(int(math.exp(logprob) * NUM_CONFIDENCES), NUM_CONFIDENCES - 1)


def length_bucket(match: Match) -> int:
    """Index of the last step that the match reaches."""
    row = 0
    while row + 1 < len(LENGTH_STEPS) and match.length >= LENGTH_STEPS[row + 1]:
        row += 1
    return row


def share_bucket(match: Match) -> int:
    """Up to a half, up to .8, all of one occurrence or fewer than all, all of several."""
    if match.agreed == match.total:
        return len(SHARE_STEPS) if match.total > 1 else len(SHARE_STEPS) - 1
    share = match.agreed / match.total
    return next(i for i, step in enumerate(SHARE_STEPS) if share <= step)
