"""A fast and a slow average of live acceptance; their difference is the sign of drift.

Owns the two averages; does not know what is done about a change.
"""

from __future__ import annotations

from dvi.config.learning import DriftConfig
from dvi.metrics import TokenAverage


class AcceptanceDrift:
    """Acceptance rate over two windows of judged tokens; one writer, the decode thread."""

    def __init__(self, config: DriftConfig) -> None:
        self._fast = TokenAverage(config.fast_tokens)
        self._slow = TokenAverage(config.slow_tokens)

    def update(self, judged: int, accepted: int) -> None:
        """Count one round; rounds without judged proposals say nothing and change nothing."""
        self._fast.update(judged, accepted)
        self._slow.update(judged, accepted)

    @property
    def alpha_fast(self) -> float | None:
        """Acceptance over about ``fast_tokens`` judged tokens, None before the first."""
        return self._fast.value

    @property
    def alpha_slow(self) -> float | None:
        """Acceptance over about ``slow_tokens`` judged tokens, None before the first."""
        return self._slow.value

    def gauges(self) -> dict[str, float]:
        """The two rates for a metrics sink, 0 before the first judged token."""
        return {"alpha_fast": self.alpha_fast or 0.0, "alpha_slow": self.alpha_slow or 0.0}
