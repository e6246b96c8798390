"""How near a tie was at one place of an answer: the gap between two tokens, from the target itself.

Owns one forward pass over the text and the request's rules; does not know why two answers differ.
Letters: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dvi.decoding.grammar import GrammarCompiler
from dvi.decoding.rules import make_rules
from dvi.modeling.plan import Segment
from dvi.modeling.target import TargetModel
from dvi.sampling import ChoicePoint, choice_margin
from dvi.types import DecodeRequest

# What two orders of summing may move a gap of logits (ARCHITECTURE, fact 7). Half precision keeps
# 8 or 11 bits of logits around 20.
NEAR_TIES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}
# Activations are rounded for 8-bit weights, and the last bit of a float moves a rounding: passes of
# 1, 5 and 9 positions of SmolLM2-135M were up to .045 apart, .0001 with float weights.
INT8_NEAR_TIE = 0.1
_SPARE = 64  # positions a cache row has behind the text, for passes that are padded


def near_tie_bound(target: TargetModel) -> float:
    """Logits up to which two answers of this target, in the fast mode, part by rounding alone."""
    bound = NEAR_TIES[target.dtype]
    return max(bound, INT8_NEAR_TIE) if target.is_quantized else bound


@torch.inference_mode()
def choice_gap(
    target: TargetModel,
    grammars: GrammarCompiler | None,
    request: DecodeRequest,
    output_ids: Sequence[int],
    candidates: tuple[int, int],
) -> float:
    """Logits by which ``candidates`` are apart as the token after prompt and ``output_ids``.

    Over processed logits: bias, penalties, grammar, truncation and noise of the request are in it.
    One of the two is the choice of this forward in nearly every case, at distance 0, so the larger
    distance is the gap. inf where one of them cannot stand here at all.
    """
    ids = (*request.prompt_ids, *output_ids)
    cache = target.new_cache(target.spec.num_layers, 1, len(ids) + _SPARE)
    plan = target.plan([Segment(0, 0, ids)])
    hidden = target.deep(target.shallow(plan, cache), plan, cache)
    row = target.logits(hidden[-1:])[0].numpy(force=True).copy()  # [V]
    rules = make_rules(request.sampling, request.prompt_ids, grammars)
    if rules is not None:
        for token_id in output_ids:
            rules.commit(token_id)
        if not rules.apply(row):
            return float("inf")
    point = ChoicePoint(request.sampling, position=len(ids))
    processed = torch.from_numpy(row)
    return max(choice_margin(processed, point, token_id) for token_id in candidates)
