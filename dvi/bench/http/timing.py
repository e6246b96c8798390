"""From replies with times to rates, latencies and gaps.

Owns the arithmetic of one pass; does not know whether HTTP was in between.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dvi.bench.stats import quantile


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: when it was asked for, and when how many tokens came (seconds of one clock)."""

    stream: int
    sent_s: float
    error: str | None
    times_s: tuple[float, ...]
    tokens: tuple[int, ...]  # one a time

    def gaps_s(self) -> list[float]:
        """Time between one delivery and the next."""
        return [later - sooner for sooner, later in itertools.pairwise(self.times_s)]

    def inter_token_s(self) -> list[float]:
        """The same, each gap divided over the tokens that ended it."""
        return [gap / number for gap, number in zip(self.gaps_s(), self.tokens[1:], strict=True)]


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds."""

    p50: float
    p95: float
    max: float


def latency(seconds: Sequence[float]) -> Latency | None:
    """None where nothing was measured."""
    if not seconds:
        return None
    return Latency(
        1e3 * statistics.median(seconds), 1e3 * quantile(seconds, 0.95), 1e3 * max(seconds)
    )


@dataclass(frozen=True, slots=True)
class Pass:
    """All streams at once, once."""

    replies: tuple[Reply, ...]

    @property
    def num_failed(self) -> int:
        """Answers that were refused or broke off."""
        return sum(reply.error is not None for reply in self.replies)

    def gaps_s(self) -> list[float]:
        """Of all answers that came whole."""
        return [gap for reply in self._whole() for gap in reply.gaps_s()]

    def tokens_per_s(self) -> float:
        """From the first request to the last token; 0 where nothing came."""
        whole = self._whole()
        if not whole:
            return 0.0
        end_s = max(reply.times_s[-1] for reply in whole)
        start_s = min(reply.sent_s for reply in self.replies)
        return sum(sum(reply.tokens) for reply in whole) / (end_s - start_s)

    def longest_gap_over_median(self) -> float | None:
        """How much longer than usual a client waited once; None where chunks came together."""
        median_s = statistics.median(self.gaps_s() or [0.0])
        return max(self.gaps_s()) / median_s if median_s else None

    def _whole(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.error is None and reply.times_s]


def first_token(passes: Iterable[Pass]) -> Latency | None:
    """Time to first token over all passes."""
    replies = [reply for one in passes for reply in one.replies]
    return latency([reply.times_s[0] - reply.sent_s for reply in replies if reply.times_s])


def inter_token(passes: Iterable[Pass]) -> Latency | None:
    """Time a token over all passes."""
    replies = [reply for one in passes for reply in one.replies if reply.error is None]
    return latency([gap for reply in replies for gap in reply.inter_token_s()])


def gap(passes: Iterable[Pass]) -> Latency | None:
    """Time between deliveries over all passes."""
    return latency([seconds for one in passes for seconds in one.gaps_s()])


def longest_gap_during_s(one: Pass, joined: Reply) -> float:
    """The longest gap of any other stream that overlaps the wait for ``joined``'s first token."""
    start_s, end_s = joined.sent_s, joined.times_s[0]
    return max(
        (
            later - sooner
            for reply in one.replies
            if reply is not joined
            for sooner, later in itertools.pairwise(reply.times_s)
            if later > start_s and sooner < end_s
        ),
        default=0.0,
    )
