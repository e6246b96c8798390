"""Numbers of one arm, and their mean and spread over seeds.

Owns the arithmetic; reads results and nothing else. A window's alpha is pooled over its rounds; a
stream's number is the mean over its stretches of one domain.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dvi.study.results import ArmResult, RequestRow
from dvi.study.rounds import Counts, count
from dvi.study.streams import stretches

EARLY = slice(20, 30)  # requests 21 to 30 of a domain
LATE_SHARE = 4  # the last quarter of a domain is its steady level
HARM = 0.03  # alpha that a promotion may cost
DOUBT = 0.05  # that any of all promotions is wrongly called harmful
CLUSTERING = 2.0  # on the variance: positions of an answer resemble each other


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over seeds."""

    mean: float
    deviation: float | None  # of the sample; None of one seed
    seeds: int

    def shown(self, digits: int = 3) -> str:
        """Mean and standard deviation."""
        text = f"{self.mean:.{digits}f}"
        return text if self.deviation is None else f"{text} +- {self.deviation:.{digits}f}"


def spread(values: Sequence[float]) -> Spread:
    """Of at least one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, len(values))


def counts(rows: Sequence[RequestRow], draft_len: int) -> Counts:
    """Rounds of ``draft_len`` through some requests."""
    total = Counts()
    for row in rows:
        total += count([hit == "1" for hit in row.hits], draft_len, row.max_tokens)
    return total


def parts(result: ArmResult) -> list[tuple[RequestRow, ...]]:
    """The stretches of the stream; a gradual one is one."""
    rows = result.requests
    if result.stream == "gradual":
        return [rows]
    pairs = [(row.domain, 0) for row in rows]
    return [rows[first:end] for first, end in stretches(pairs)]


def early(part: Sequence[RequestRow]) -> Sequence[RequestRow]:
    """Requests 21 to 30."""
    return part[EARLY]


def late(part: Sequence[RequestRow]) -> Sequence[RequestRow]:
    """The last quarter."""
    return part[len(part) - max(1, len(part) // LATE_SHARE) :]


def over_parts(
    result: ArmResult,
    window: Callable[[Sequence[RequestRow]], Sequence[RequestRow]],
    value: Callable[[Counts], float],
    draft_len: int | None = None,
) -> float:
    """Mean over stretches of a number of a window; K is the arm's own unless given."""
    length = draft_len or result.draft_len
    return statistics.fmean(value(counts(window(part), length)) for part in parts(result))


def whole(part: Sequence[RequestRow]) -> Sequence[RequestRow]:
    """All of it."""
    return part


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of positions at which a source proposes the token, had all before been accepted."""

    positions: int
    neural: float
    memory: float
    either: float


def agreement(rows: Sequence[RequestRow], *, known: str) -> Agreement:
    """Over the positions whose ``known`` is among the given letters; zeros of nothing."""
    found = [
        (neural == "1", memory == "1")
        for row in rows
        for neural, memory, letter in zip(row.hits, row.memory, row.known, strict=True)
        if letter in known
    ]
    total = max(1, len(found))
    return Agreement(
        len(found),
        sum(neural for neural, _ in found) / total,
        sum(memory for _, memory in found) / total,
        sum(neural or memory for neural, memory in found) / total,
    )


@dataclass(frozen=True, slots=True)
class Promotion:
    """A version against the one that it replaced, on the requests that it served."""

    better: int  # positions that only the new one gets right
    worse: int
    positions: int

    @property
    def gain(self) -> float:
        """Difference of agreement."""
        return (self.better - self.worse) / self.positions

    def doubt_of_harm(self) -> float:
        """Chance of such a loss or more if the true one were HARM."""
        variance = CLUSTERING * max(1, self.better + self.worse) / self.positions**2
        return statistics.NormalDist(-HARM, variance**0.5).cdf(self.gain)


def promotions(result: ArmResult) -> list[Promotion]:
    """Every promotion after which a request was served."""
    by_version: dict[int, list[RequestRow]] = {}
    for row in result.requests:
        if row.replaced is not None:
            by_version.setdefault(row.version, []).append(row)
    return [_promotion(rows) for rows in by_version.values()]


def count_pairs(pairs: Sequence[tuple[bool, bool]]) -> Promotion:
    """From whether the new version is right and whether the old one is, position by position."""
    return Promotion(
        better=sum(new > old for new, old in pairs),
        worse=sum(new < old for new, old in pairs),
        positions=len(pairs),
    )


def num_harmful(found: Sequence[Promotion], num_judged: int) -> int:
    """Promotions that cost more than HARM; ``num_judged`` is all that are judged with them.

    The confidence is corrected for that number: DOUBT is the chance that any of them is wronged.
    """
    assert num_judged >= len(found)
    return sum(one.doubt_of_harm() < DOUBT / num_judged for one in found)


def _promotion(rows: Sequence[RequestRow]) -> Promotion:
    pairs = [pair for row in rows for pair in zip(row.hits, row.replaced or "", strict=True)]
    return count_pairs([(new == "1", old == "1") for new, old in pairs])
