"""What a draft step, a plain step and a verify pass cost on this machine.

Owns the measuring and the record of it; does not know acceptance. A recorded profile makes draft
lengths a function of the requests alone (ARCHITECTURE, invariant 8).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from dvi.acceptance import break_even_acceptance
from dvi.config import DecodingConfig
from dvi.drafting import Drafter, DraftRequest
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.types import SamplingParams

# Where a row is measured: some way into a context, as most rounds are.
MEASURED_POSITION = 200
REPEATS = 5  # after one unmeasured call each; the least is kept: what disturbs only ever adds


@dataclass(frozen=True, slots=True)
class CostProfile:
    """Seconds at batch 1, undisturbed."""

    draft_len: int  # K the profile was made for
    draft_step_s: float  # one proposal
    plain_s: float  # a target pass over one position, choice excluded
    verify_s: float  # a target pass over K + 1 positions

    def break_even(self) -> float:
        """Acceptance from which K proposals beat plain decoding; inf if none does."""
        if not self.draft_len:
            return 0.0  # nothing to decide
        return break_even_acceptance(self.draft_step_s, self.verify_s, self.plain_s, self.draft_len)

    def save(self, path: Path) -> None:
        """Write as JSON."""
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")


def load_costs(path: Path) -> CostProfile:
    """A profile that ``save`` wrote; raises ValueError for any other content."""
    try:
        return CostProfile(**json.loads(path.read_text(encoding="utf-8")))
    except TypeError as fault:
        raise ValueError(f"{path}: not a cost profile: {fault}") from fault


def measure_costs(
    target: TargetModel, drafter: Drafter, draft_len: int, clock: Callable[[], float]
) -> CostProfile:
    """Time the three passes on a cache of their own. Before the engine starts: uses drafter row 0.

    The drafter's row is released afterwards; what was written there is overwritten by any prompt.
    """
    cache = target.new_cache(target.spec.num_layers, 1, MEASURED_POSITION + draft_len + 1)
    request = DraftRequest(
        row=0,
        position=MEASURED_POSITION,
        token=0,
        draft_len=draft_len,
        params=SamplingParams(max_tokens=draft_len + 1, temperature=0.0),
    )
    calls: list[Callable[[], object]] = [
        lambda: forward(target, cache, 1),
        lambda: forward(target, cache, draft_len + 1),
        lambda: drafter.propose([request], cache) if draft_len else [],
    ]
    with torch.inference_mode():
        plain_s, verify_s, draft_s = time_calls(calls, clock)
    drafter.release(0)
    return CostProfile(draft_len, draft_s / max(draft_len, 1), plain_s, verify_s)


def break_even_from_config(
    config: DecodingConfig, target: TargetModel, drafter: Drafter, clock: Callable[[], float]
) -> float:
    """The configured break-even acceptance, or the measured one where none is configured."""
    if config.break_even_acceptance is not None:
        return config.break_even_acceptance
    if not config.adaptive:
        return 0.0
    draft_len = min(config.draft_len, config.max_draft_len)
    return measure_costs(target, drafter, draft_len, clock).break_even()


def forward(target: TargetModel, cache: KvCache, width: int) -> None:
    """A whole target pass over ``width`` positions of row 0."""
    plan = target.plan([Segment(0, MEASURED_POSITION, (0,) * width)])
    hidden = target.deep(target.shallow(plan, cache), plan, cache)
    target.logits(hidden)


def time_calls(calls: Sequence[Callable[[], object]], clock: Callable[[], float]) -> list[float]:
    """Least seconds of each call, taken in turns so that a slow moment hits all alike."""
    least_s = [math.inf] * len(calls)
    for turn in range(REPEATS + 1):
        for index, call in enumerate(calls):
            start_s = clock()
            call()
            if turn:
                least_s[index] = min(least_s[index], clock() - start_s)
    return least_s
