"""Who watches the engine: single measurements as they happen, for histograms.

Owns the interface only; does not know Prometheus, nor what buckets the numbers fall into.
"""

from __future__ import annotations

from typing import Protocol


class EngineObserver(Protocol):
    """Called on the decode thread, between rounds: every method must be cheap and must not raise.

    Durations are seconds of the engine's monotonic clock.
    """

    def queue_wait(self, seconds: float) -> None:
        """One request got its row this long after it arrived."""

    def first_token(self, seconds: float) -> None:
        """One request got its first tokens this long after it arrived, queue included."""

    def inter_token(self, seconds: float, num_tokens: int) -> None:
        """A later delivery of ``num_tokens``; ``seconds`` is its gap divided over them."""

    def request_done(self, seconds: float) -> None:
        """One request ended with stop or length this long after it arrived."""

    def request_acceptance(self, rate: float) -> None:
        """accepted / judged of one such request; not called when nothing was judged."""

    def swap_pause(self, seconds: float) -> None:
        """Decoding stood still this long for one exchange of draft weights."""


class SilentObserver:
    """Watches nothing."""

    def queue_wait(self, seconds: float) -> None:
        """See EngineObserver."""

    def first_token(self, seconds: float) -> None:
        """See EngineObserver."""

    def inter_token(self, seconds: float, num_tokens: int) -> None:
        """See EngineObserver."""

    def request_done(self, seconds: float) -> None:
        """See EngineObserver."""

    def request_acceptance(self, rate: float) -> None:
        """See EngineObserver."""

    def swap_pause(self, seconds: float) -> None:
        """See EngineObserver."""
