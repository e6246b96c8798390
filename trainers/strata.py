"""Which rows share room in the reservoir: those of one domain, so that none can push out another.

Owns the labels of rows and which domains are told apart. Domain tags are a user's text: what is
kept of them is a hash. Does not know which rows stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from dvi.replay import RowKey

OTHER = 0  # rows without a tag, and of all domains that are not told apart
MOST_DOMAINS = 16  # told apart at a time
FEWEST_ROWS = 8  # of a domain that is told apart: a tag that hardly comes again is none

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class StrataState:
    """What a checkpoint keeps; nothing where no row has a tag."""

    labels: tuple[tuple[RowKey, int], ...] = ()
    counts: Pairs = ()
    seen: Pairs = ()


def label_of(domain: str) -> int:
    """48 bits of the tag, OTHER without one."""
    return int.from_bytes(blake2b(domain.encode(), digest_size=6).digest()) if domain else OTHER


class Strata:
    """One stratum for each of the busiest domains, one for the rest.

    Busy: by the counts of Misra and Gries (1982), which hold each domain with more than one row in
    MOST_DOMAINS + 1 however many tags there are.
    """

    def __init__(self, state: StrataState | None = None) -> None:
        state = state or StrataState()
        self._labels = dict(state.labels)
        self._counts = Counter(dict(state.counts))
        self._seen = Counter(dict(state.seen))

    def snapshot(self) -> StrataState:
        """The state that the next one may begin with."""
        labels = tuple(self._labels.items())
        return StrataState(labels, tuple(self._counts.items()), tuple(self._seen.items()))

    def name(self, key: RowKey, domain: str) -> None:
        """Note the domain of a row."""
        if domain:
            self._labels[key] = label_of(domain)

    def forget(self, keys: Iterable[RowKey]) -> None:
        """These rows are gone."""
        for key in keys:
            self._labels.pop(key, None)

    def of(self, key: RowKey) -> int:
        """The stratum of a row, as things stand."""
        label = self._labels.get(key, OTHER)
        return label if self._counts[label] >= FEWEST_ROWS else OTHER

    def seen(self, stratum: int) -> int:
        """Rows counted in a stratum so far."""
        return self._seen[stratum]

    def count(self, key: RowKey) -> None:
        """One row more of its domain."""
        self._seen[self.of(key)] += 1
        label = self._labels.get(key, OTHER)
        if label == OTHER:
            return
        before = self._told_apart()
        if label in self._counts or len(self._counts) < MOST_DOMAINS:
            self._counts[label] += 1
        else:
            self._counts -= Counter(dict.fromkeys(self._counts, 1))  # keeps what is above 0
        after = self._told_apart()
        for new in after - before:
            self._seen[new] = self._counts[new]
            self._seen[OTHER] -= self._counts[new]
        for gone in before - after:
            self._seen[OTHER] += self._seen.pop(gone)

    def _told_apart(self) -> set[int]:
        return {label for label, count in self._counts.items() if count >= FEWEST_ROWS}
