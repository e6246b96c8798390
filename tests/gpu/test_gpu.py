"""On a CUDA device: parity in bf16, swap pauses, plain against draft on a billion weights.

Every figure is printed as one JSON line (`pytest -s`, scripts/gpu_bench.sh); speeds are recorded,
what must hold is asserted.
"""

from __future__ import annotations

import json

import pytest
import torch

from dvi.bench.stats import quantile
from dvi.decoding.gap import NEAR_TIES
from tests.gpu.synthetic import (
    BILLION,
    Place,
    decode,
    near_ties,
    open_rig,
    prompts,
    swap_pauses_s,
    synthetic_target,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
SCALES = (0.0, 0.05, 0.15, 0.4)  # of the deep layers: from a perfect draft to a poor one
MAX_TOKENS = 128


def _cuda(dtype: torch.dtype = torch.bfloat16) -> Place:
    return Place(torch.device("cuda"), dtype)


def _tell(name: str, **figures: object) -> None:
    device = torch.cuda.get_device_name()
    print(json.dumps({"check": name, "device": device, "torch": torch.__version__, **figures}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_answers_with_drafts_equal_plain_ones_but_for_near_ties(dtype: torch.dtype) -> None:
    target = synthetic_target(BILLION, _cuda(dtype), 0.15)
    asked, engine = prompts(target, 8), open_rig(target, 8)
    plain = decode(engine, asked, MAX_TOKENS, plain=True)
    draft = decode(engine, asked, MAX_TOKENS, plain=False)
    found = near_ties(target, asked, plain, draft)
    _tell("near ties", dtype=str(dtype), compared=found.compared, margins=found.margins)
    assert max(found.margins, default=0.0) <= NEAR_TIES[dtype]


def test_swaps_pause_a_running_request_for_less_than_a_millisecond() -> None:
    pauses = sorted(swap_pauses_s(synthetic_target(BILLION, _cuda(), 0.0), 200))
    p99_ms = 1e3 * quantile(pauses, 0.99)
    _tell("swap pause", median_ms=1e3 * quantile(pauses, 0.5), p99_ms=p99_ms)
    assert p99_ms < 1.0


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_good_draft_is_faster_than_plain_decoding(batch_size: int) -> None:
    ratios = []
    for scale in SCALES:
        target = synthetic_target(BILLION, _cuda(), scale)
        asked, engine = prompts(target, batch_size), open_rig(target, batch_size)
        plain = decode(engine, asked, MAX_TOKENS, plain=True)
        draft = decode(engine, asked, MAX_TOKENS, plain=False)
        ratios.append(draft.tokens_per_s / plain.tokens_per_s)
        _tell(
            "plain against draft",
            batch_size=batch_size,
            deep_scale=scale,
            alpha=draft.counts.acceptance_rate(),
            mean_accepted_length=draft.counts.mean_accepted_length(),
            plain_tokens_per_s=plain.tokens_per_s,
            draft_tokens_per_s=draft.tokens_per_s,
            ratio=ratios[-1],
        )
        del engine, target
        torch.cuda.empty_cache()
    # A perfect draft commits 5 tokens for 4 draft steps of 3 layers and a head, and one pass of 16.
    assert ratios[0] > 1.2
