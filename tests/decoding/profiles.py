"""Recorded costs for tests: no clock is read.

Owns numbers only: seconds by positions of one session, and what a batch adds.
"""

from __future__ import annotations

from dvi.decoding.costs import BatchCosts, CostProfile

# Positions 1, 2, 4, 9 of SmolLM2 in fp32 on two cores (SPEED.md), in seconds.
PACKED = ((1, 0.036), (2, 0.043), (4, 0.047), (9, 0.054))


def profile(
    passes: tuple[tuple[float, float], ...] = PACKED, draft_step_s: float = 0.004
) -> CostProfile:
    """Of two batches: eight sessions cost four times as much as one at equal width."""
    eight = tuple((8 * n, 4 * s) for n, s in passes)
    return CostProfile(
        (BatchCosts(1, passes, draft_step_s), BatchCosts(8, eight, 3 * draft_step_s))
    )


# Every position costs as much as the first: no draft can pay.
LINEAR = profile(tuple((n, 0.036 * n) for n in (1, 2, 4, 9)))
