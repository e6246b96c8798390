"""How near a tie was where two answers parted: the gap in logits, from the model itself.

Owns one forward pass a divergence; loads the model only when there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dvi.config import DviConfig
from dvi.demo.compare import Divergence
from dvi.modeling.loading import load_target
from dvi.modeling.plan import Segment
from dvi.modeling.resolve import resolve_model_path
from dvi.sampling import ChoicePoint, choice_margin
from dvi.types import SamplingParams


@torch.inference_mode()
def margins(
    config: DviConfig, divergences: Sequence[Divergence], temperature: float
) -> list[float | None]:
    """For each divergence the gap of z + T * noise between the two tokens, in logits.

    One of the two is the choice of this forward too, at distance 0, so the larger one is the gap.
    None where an answer had ended: then no two tokens were chosen at that place.
    """
    if not divergences:
        return []
    path = resolve_model_path(config.model)
    length = max(len(item.prefix_ids) for item in divergences)
    target = load_target(
        path,
        config.model,
        config.drafter.exit_layer,
        deterministic=config.demo.deterministic,
        layers="all",
        max_context_len=length + 64,
    )
    gaps: list[float | None] = []
    for item in divergences:
        if item.served_id is None or item.plain_id is None:
            gaps.append(None)
            continue
        cache = target.new_cache(target.spec.num_layers, 1, length + 64)
        plan = target.plan([Segment(0, 0, item.prefix_ids)])
        hidden = target.deep(target.shallow(plan, cache), plan, cache)
        logits = target.logits(hidden[-1:])[0]  # [V]
        params = SamplingParams(max_tokens=1, temperature=temperature, seed=item.seed)
        point = ChoicePoint(params, position=len(item.prefix_ids))
        served = choice_margin(logits, point, item.served_id)
        gaps.append(max(served, choice_margin(logits, point, item.plain_id)))
    return gaps
