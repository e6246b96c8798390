"""How near a tie was where two answers parted: the gap in logits, from the model itself.

Owns one forward pass a divergence; loads the model only when there is one.
"""

from __future__ import annotations

from collections.abc import Sequence

from dvi.config import DviConfig
from dvi.decoding.gap import choice_gap
from dvi.demo.compare import Divergence
from dvi.modeling.loading import load_target
from dvi.modeling.resolve import resolve_model_path
from dvi.types import DecodeRequest, SamplingParams


def margins(
    config: DviConfig, divergences: Sequence[Divergence], temperature: float
) -> list[float | None]:
    """For each divergence the gap of z + T * noise between the two tokens, in logits.

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
        params = SamplingParams(max_tokens=1, temperature=temperature, seed=item.seed)
        request = DecodeRequest("demo", item.prefix_ids, params)
        gaps.append(choice_gap(target, None, request, (), (item.served_id, item.plain_id)))
    return gaps
