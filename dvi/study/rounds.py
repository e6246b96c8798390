"""What rounds of K proposals would have done, from what a draft proposes at every position.

Owns the walk; it counts as the engine does (the last kept token is the target's own, nothing is
proposed for the last token that a limit allows). Knows neither drafts nor traces' tensors.
Rounds in *letters*, one a token: ``n`` or ``m`` for an accepted proposal of the learned draft or
the memory; for the target's own token, which ends a round, ``N`` or ``M`` where it stands in the
place of a rejected proposal, ``-`` where less was proposed than asked for and all of it accepted,
and ``.`` otherwise.
Letters: n answer tokens, K draft length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dvi.types import Round, Source

LETTERS = {Source.NEURAL: "n", Source.MEMORY: "m", Source.TARGET: ""}  # nothing proposed


@dataclass(frozen=True, slots=True)
class Cycle:
    """One round: it proposed for output token ``start`` and those behind it."""

    start: int
    num_judged: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Sums over rounds."""

    rounds: int = 0
    judged: int = 0
    accepted: int = 0
    silent: int = 0  # rounds in which a source had less to say than it was asked

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.rounds + other.rounds,
            self.judged + other.judged,
            self.accepted + other.accepted,
            self.silent + other.silent,
        )

    @property
    def alpha(self) -> float:
        """accepted / judged; 0 of nothing."""
        return self.accepted / self.judged if self.judged else 0.0

    @property
    def rate(self) -> float:
        """Alpha where silence counts as a miss; 0 of nothing."""
        asked = self.judged + self.silent
        return self.accepted / asked if asked else 0.0

    @property
    def tokens_per_round(self) -> float:
        """The target's own token included; 0 of nothing."""
        return 1 + self.accepted / self.rounds if self.rounds else 0.0


def walk(hits: Sequence[bool], draft_len: int, max_tokens: int) -> Iterator[Cycle]:
    """Rounds through an answer of n tokens; ``hits``: the draft proposes the token, [n].

    ``max_tokens`` is the request's limit, which may lie beyond the answer's end.
    """
    start, end = 0, len(hits)
    while start < end:
        width = min(draft_len, max_tokens - start - 1)
        accepted = 0
        while accepted < width and start + accepted < end and hits[start + accepted]:
            accepted += 1
        is_cut = start + accepted == end  # the end token itself was proposed
        accepted -= is_cut
        rejected = not is_cut and accepted < width
        yield Cycle(start, accepted + rejected, accepted)
        start += accepted + 1


def count(hits: Sequence[bool], draft_len: int, max_tokens: int) -> Counts:
    """Sums over the rounds of one answer."""
    cycles = list(walk(hits, draft_len, max_tokens))
    return Counts(
        len(cycles),
        sum(cycle.num_judged for cycle in cycles),
        sum(cycle.num_accepted for cycle in cycles),
    )


def letters(one: Round, *, is_short: bool) -> str:
    """A round in letters; ``is_short``: more proposals were asked for, and the answer went on."""
    letter = LETTERS[one.source]
    accepted = letter * one.num_accepted
    if len(one.proposed_ids) > one.num_accepted:
        return accepted + letter.upper()
    return accepted + ("-" if is_short else ".")


def count_letters(text: str) -> Counts:
    """Sums over rounds in letters."""
    rejected = sum(map(str.isupper, text))
    accepted = sum(map(str.islower, text))
    return Counts(len(text) - accepted, accepted + rejected, accepted, text.count("-"))
