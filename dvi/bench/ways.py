"""How requests of a measurement are sampled.

Owns the sampling fields; does not know what is timed.
"""

from __future__ import annotations

from dataclasses import dataclass

from dvi.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Way:
    """One kind of request."""

    name: str
    speculation: bool
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def endless(self, max_tokens: int, seed: int) -> SamplingParams:
        """The end token does not stop, so that every repeat does equal work."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=seed,
            ignore_eos=True,
        )


WAYS = (
    Way("plain", speculation=False),
    Way("plain sampled", speculation=False, temperature=1.0),
    Way("draft", speculation=True),
    Way("draft sampled", speculation=True, temperature=1.0),
    Way("draft filtered", speculation=True, temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
)
