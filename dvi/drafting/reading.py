"""Reading on after earlier occurrences of our words: how matches become proposals.

Owns the search for the longest match and the choice among what its occurrences say; does not know
whose text may be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dvi.drafting.base import DraftRequest, Match
from dvi.drafting.ngrams import NO_MATCH
from dvi.drafting.occurrence import Occurrence, OurText, Saying, listen
from dvi.drafting.served import ScopeText
from dvi.drafting.shares import mean
from dvi.sampling.choice import ChoicePoint, choose_among
from dvi.sampling.noise import Purpose

# What few say is taken in a quarter of cases all the same, by answers drawn at temperature .8.
LEAST_CHANCE = 0.25
LEAST_REACH = 0.1  # chance of all proposals together: with less, the next one is not looked for


@dataclass(frozen=True, slots=True)
class Found:
    """Earlier occurrences of the end of our text: served ones first, each kind oldest first."""

    length: int  # tokens matched
    occurrences: Sequence[Occurrence]


@dataclass(frozen=True, slots=True)
class Search:
    """What a request may read, and the end of its text."""

    ours: OurText
    served: ScopeText | None  # None: nothing
    tail: Sequence[int]  # committed tokens, the last ``max_match`` of them
    max_match: int

    def find(self, proposed: Sequence[int]) -> Found:
        """Occurrences of the longest end of our text, with ``proposed`` at its end."""
        words = [*self.tail, *proposed][-self.max_match :]
        own = self.ours.index.longest(words, self.max_match)
        served = NO_MATCH
        if self.served is not None:
            served = self.served.index.longest(words, self.max_match)
        length = max(own.length, served.length)
        occurrences: list[Occurrence] = []
        if self.served is not None and served.length == length:
            offsets = self.served.index.offsets(served.places)
            occurrences += [Occurrence(self.served, at) for at in offsets]
        if own.length == length:
            offsets = self.ours.index.offsets(own.places)
            occurrences += [Occurrence(self.ours, at) for at in offsets]
        return Found(length, occurrences)


def read_on(search: Search, request: DraftRequest) -> tuple[tuple[int, ...], tuple[Match, ...]]:
    """Read on after all occurrences together, keeping those that agree with what was taken.

    Where none does, since what was likely is not what was said, it is looked up anew. An occurrence
    that reaches the end of the request's own text goes on with what is proposed: that is how a text
    that repeats itself goes on.
    """
    ids: list[int] = []
    matches: list[Match] = []
    found = search.find(ids)
    reach = 1.0
    while len(ids) < request.draft_len and reach >= LEAST_REACH:
        said = listen(found.occurrences, search.ours)
        if not said:
            break
        token, agreed = _pick(said, request, request.position + 1 + len(ids))
        matches.append(Match(found.length, agreed, len(said)))
        ids.append(token)
        search.ours.ids.append(token)
        agreeing = [one.then for one in said if one.token == token]
        found = Found(found.length + 1, agreeing) if agreeing else search.find(ids)
        reach *= LEAST_CHANCE + (1 - LEAST_CHANCE) * agreed / len(said)
    return tuple(ids), tuple(matches)


def _pick(said: Sequence[Saying], request: DraftRequest, position: int) -> tuple[int, float]:
    """The proposal among what is said, and how many say it.

    A greedy request takes what was said most often. A sampled one draws from the mean of what the
    target held likely there, with the target's own noise of ``position``: so it agrees with the
    target as often as coupling allows. With noise of its own a proposal is accepted as often as the
    target draws it, and the likeliest is best. What was likely is known before any rules: a request
    that has some hears what was said.
    """
    temperature = request.params.temperature
    if temperature == 0:
        return _most_frequent(said)
    named = [(one.by.token, one.token) for one in said]
    rows = [one.shares() if request.rules is None else None for one in said]
    shares = mean(rows, named, temperature)
    token = max(shares, key=shares.__getitem__)
    if len(shares) > 1 and request.purpose is Purpose.CHOICE:
        ids = np.array(sorted(shares), np.int64)
        logits = temperature * np.log([shares[one] for one in ids.tolist()])
        token = int(ids[choose_among(ids, logits, ChoicePoint(request.params, position))])
    return token, shares[token] * len(said)


def _most_frequent(said: Sequence[Saying]) -> tuple[int, float]:
    """The newest on a tie."""
    counts: dict[int, int] = {}
    for one in said:
        counts[one.token] = counts.pop(one.token, 0) + 1  # reinserted: the newest comes last
    token = max(reversed(counts), key=counts.__getitem__)
    return token, counts[token]
