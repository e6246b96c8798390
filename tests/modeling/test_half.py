"""Half precision: loaded from a folder, decoded, and compared with Hugging Face in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dvi.config import ModelConfig
from dvi.modeling.loading import DTYPES, load_target
from dvi.modeling.plan import Segment
from tests.modeling.helpers import decode_in_widths, forward, random_ids, whole_cache
from tests.rigs import make_model_folder

NUM_TOKENS = 60
# Roundings of 2^-9 (bfloat16) and 2^-12 (float16) of values up to ten, at some twenty places of 4
# layers; a wrong detail moves logits by more.
BOUNDS = {"bfloat16": 0.6, "float16": 0.08}


@pytest.mark.parametrize("dtype", sorted(BOUNDS))
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_choices_are_those_of_float32_but_for_near_ties(
    tmp_path: Path, arch: str, dtype: str
) -> None:
    theirs = make_model_folder(tmp_path, arch)
    ours = load_target(
        tmp_path,
        ModelConfig(dtype=dtype),
        2,
        deterministic=False,
        layers="all",
        max_context_len=256,
    )
    assert ours.dtype == DTYPES[dtype]
    num_ids = ours.spec.num_token_ids
    ids = random_ids(NUM_TOKENS, num_ids)
    with torch.no_grad():
        want = theirs(input_ids=torch.tensor([ids])).logits[0, :, :num_ids]
    top = want.topk(2).values
    margin = top[:, 0] - top[:, 1]
    whole = forward(ours, whole_cache(ours), [Segment(0, 0, ids)])
    stepwise = decode_in_widths(ours, whole_cache(ours), 1, ids, [20, 1, 1, 5, 9, 3, 21])
    for got in (whole, stepwise):
        assert got.dtype == torch.float32
        assert (got[:, :num_ids] - want).abs().max() < BOUNDS[dtype]
        flipped = got.argmax(-1) != want.argmax(-1)
        assert (margin[flipped] < 2 * BOUNDS[dtype]).all()
        assert flipped.float().mean() < 0.2
