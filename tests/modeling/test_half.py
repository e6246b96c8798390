"""Half precision: loaded from a folder, decoded, and compared with Hugging Face's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dvi.config import ModelConfig
from dvi.modeling.loading import DTYPES, load_target
from dvi.modeling.plan import Segment
from tests.modeling.helpers import decode_in_widths, forward, random_ids, whole_cache
from tests.rigs import make_model_folder

NUM_TOKENS = 60


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
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

    def reference(model: torch.nn.Module) -> Tensor:
        with torch.no_grad():
            return model(input_ids=torch.tensor([ids])).logits[0, :, :num_ids].float()

    want = reference(theirs)
    # What half precision costs at all; two paths that round at other places differ in luck only.
    bound = 2 * float((reference(theirs.to(DTYPES[dtype])) - want).abs().max())
    assert 0 < bound < 2.0
    top = want.topk(2).values
    margin = top[:, 0] - top[:, 1]
    whole = forward(ours, whole_cache(ours), [Segment(0, 0, ids)])
    stepwise = decode_in_widths(ours, whole_cache(ours), 1, ids, [20, 1, 1, 5, 9, 3, 21])
    for got in (whole, stepwise):
        assert got.dtype == torch.float32
        assert (got[:, :num_ids] - want).abs().max() < bound
        flipped = got.argmax(-1) != want.argmax(-1)
        assert (margin[flipped] < 2 * bound).all()
        assert flipped.float().mean() < 0.2
