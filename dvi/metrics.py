"""Averages and counts of what was accepted; pure, without clocks, threads or sinks."""

from __future__ import annotations

import math


class TokenAverage:
    """Exponential average of a 0/1 event over tokens, forgetting on a scale of ``window_tokens``.

    A stretch of n tokens is taken as n tokens of its mean rate: the weight of everything before it
    falls by exp(-n / window), and splitting a stretch of equal rate changes nothing. The average is
    of what was seen, without a prior: after one stretch it is that stretch's rate.
    """

    def __init__(self, window_tokens: float) -> None:
        assert window_tokens > 0
        self.window_tokens = window_tokens
        self._weight = 0.0  # decayed share of the window that was seen, in [0, 1)
        self._hits = 0.0

    def update(self, num_tokens: float, num_hits: float) -> None:
        """Count ``num_tokens`` tokens, of which ``num_hits`` were hits."""
        assert 0 <= num_hits <= num_tokens
        if num_tokens == 0:
            return
        kept = math.exp(-num_tokens / self.window_tokens)
        self._weight = self._weight * kept + (1 - kept)
        self._hits = self._hits * kept + (1 - kept) * num_hits / num_tokens

    @property
    def value(self) -> float | None:
        """The average rate, None before the first token."""
        return self._hits / self._weight if self._weight else None

    @property
    def fullness(self) -> float:
        """How much of the window has been seen, in [0, 1): 0.63 after ``window_tokens`` tokens."""
        return self._weight


class PositionCounts:
    """How often each position of a proposal was proposed and accepted, unconditionally."""

    def __init__(self, max_draft_len: int) -> None:
        self.proposed = [0] * max_draft_len
        self.accepted = [0] * max_draft_len

    def add_round(self, num_proposed: int, num_accepted: int) -> None:
        """Count one round; ``num_accepted <= num_proposed <= max_draft_len``."""
        assert 0 <= num_accepted <= num_proposed <= len(self.proposed)
        for position in range(num_proposed):
            self.proposed[position] += 1
        for position in range(num_accepted):
            self.accepted[position] += 1
