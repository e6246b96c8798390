"""What an earlier occurrence of our words says comes next.

Owns the reading on; knows neither scopes nor counts. An answer repeats words of its request: a
name, a number, a table's columns. Where an earlier text went on with a token that it had held
before, that token is a copy, and ours is expected to copy from the same place of our own text: the
place after the same words. So one answer of a form says how the next one is filled in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dvi.drafting.ngrams import END, NgramIndex
from dvi.drafting.shares import Row

# How far back an earlier text is searched for the token that it went on with.
REACH_TOKENS = 256
# Words that say where a copied token stands: compared up to so many, and fewer say too little.
PLACE_TOKENS = 8
LEAST_PLACE_TOKENS = 2


class Copy(NamedTuple):
    """Where an earlier text, and ours, are in the words that they repeat; as offsets."""

    there: int
    here: int


class Text(Protocol):
    """Where words stand that may be ours."""

    @property
    def ids(self) -> Sequence[int]:
        """Its tokens; END after each document."""

    def shares_at(self, place: int) -> Row | None:
        """What the target held likely for the token at offset ``place``; None: not known."""


@dataclass(frozen=True, slots=True)
class OurText:
    """The request's own text, with what is proposed so far at its end."""

    index: NgramIndex  # without the proposals
    ids: list[int]

    def shares_at(self, place: int) -> None:
        """Known once the answer is complete."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Where an earlier text, which may be our own, goes on."""

    text: Text
    place: int  # offset in its ids of the token that follows; END after the last
    copied: Copy | None = None  # the token before it, if that was a copy

    @property
    def token(self) -> int:
        """What follows there."""
        return self.text.ids[self.place]


class Saying(NamedTuple):
    """What an occurrence says."""

    token: int
    then: Occurrence  # where it goes on if that is taken
    by: Occurrence

    def shares(self) -> Row | None:
        """What the target held likely there; None: not known."""
        return self.by.text.shares_at(self.by.place)


def listen(occurrences: Sequence[Occurrence], ours: OurText) -> list[Saying]:
    """What those say that have not come to their end, in order.

    Several that went on alike are taken at their word: what all share is no copy.
    """
    going_on = [one for one in occurrences if one.token != END]
    are_alike = len(going_on) > 1 and len({one.token for one in going_on}) == 1
    return [literal(one) if are_alike else say(one, ours) for one in going_on]


def literal(one: Occurrence) -> Saying:
    """Its own next token."""
    return Saying(one.token, Occurrence(one.text, one.place + 1), one)


def say(one: Occurrence, ours: OurText) -> Saying:
    """Its own next token, or what ours has in the place that this is a copy of."""
    copy = find_copy(one, ours)
    if copy is None:
        return literal(one)
    waits = one.copied is not None and copy.there == one.copied.there
    return Saying(ours.ids[copy.here], Occurrence(one.text, one.place + (not waits), copy), one)


def find_copy(one: Occurrence, ours: OurText) -> Copy | None:
    """What the occurrence's next token is a copy of; None where it is none, or ours has no such
    place. A copy goes on where it is, also once the earlier text has left its own: our word may be
    longer, and ends where ours goes on as theirs went on. Of equal tokens the newest is the source,
    and of equal places of ours the newest is meant.
    """
    if one.copied is not None:
        there, here = one.copied.there + 1, one.copied.here + 1
        following = ours.ids[here] if here < len(ours.ids) else END
        if following != END and one.text.ids[there] == one.token:
            return Copy(there, here)
        if following not in (END, one.text.ids[there]):
            return Copy(there - 1, here)
    before = one.text.ids[max(one.place - REACH_TOKENS, 0) : one.place][::-1]
    if END in before:
        before = before[: before.index(END)]
    if one.token not in before:
        return None
    back = before.index(one.token)
    words = before[back + 1 : back + 1 + PLACE_TOKENS][::-1]
    same = ours.index.longest(words, PLACE_TOKENS)
    if same.length < LEAST_PLACE_TOKENS:
        return None
    (here,) = ours.index.offsets(same.places[-1:])
    return Copy(one.place - 1 - back, here)
