"""On a CUDA device: parity in bf16, graphs, swap pauses, plain against draft, a billion weights.

Every figure is printed as one JSON line (`pytest -s`, scripts/gpu_bench.sh); speeds are recorded,
what must hold is asserted.
"""

from __future__ import annotations

import json

import pytest
import torch

from dvi.bench.stats import quantile
from dvi.decoding.gap import NEAR_TIES
from dvi.modeling.capture import Capture, CudaCapture
from tests.gpu.synthetic import (
    BILLION,
    Place,
    decode,
    near_ties,
    open_rig,
    prompts,
    swap_often,
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


def _captures() -> dict[str, Capture | None]:
    return {"eager": None, "graphs": CudaCapture()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_answers_with_drafts_and_graphs_equal_plain_ones_but_for_near_ties(
    dtype: torch.dtype, temperature: float
) -> None:
    target = synthetic_target(BILLION, _cuda(dtype), 0.15)
    asked = prompts(target, 8)
    want = decode(open_rig(target, 8), asked, MAX_TOKENS, plain=True, temperature=temperature)
    for name, capture in _captures().items():
        engine = open_rig(target, 8, capture)
        for plain in (True, False):
            got = decode(engine, asked, MAX_TOKENS, plain=plain, temperature=temperature)
            found = near_ties(target, asked, want, got)
            _tell(
                "near ties",
                dtype=str(dtype),
                temperature=temperature,
                way=f"{name}, {'plain' if plain else 'draft'}",
                compared=found.compared,
                margins=found.margins,
            )
            assert max(found.margins, default=0.0) <= NEAR_TIES[dtype]
            assert plain or got.counts.accepted > 0


@pytest.mark.parametrize("way", ["eager", "graphs"])
def test_swaps_pause_a_running_request_for_less_than_a_millisecond(way: str) -> None:
    target = synthetic_target(BILLION, _cuda(), 0.0)
    swaps = swap_often(target, 200, _captures()[way])
    pauses = sorted(swaps.pauses_s)
    p99_ms = 1e3 * quantile(pauses, 0.99)
    _tell("swap pause", way=way, median_ms=1e3 * quantile(pauses, 0.5), p99_ms=p99_ms)
    assert p99_ms < 1.0
    assert swaps.recorded == 0


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_good_draft_is_faster_than_plain_decoding_and_graphs_than_none(batch_size: int) -> None:
    ratios = []
    for scale in SCALES:
        target = synthetic_target(BILLION, _cuda(), scale)
        asked = prompts(target, batch_size)
        plain, draft = {}, {}
        for name, capture in _captures().items():
            engine = open_rig(target, batch_size, capture)
            plain[name] = decode(engine, asked, MAX_TOKENS, plain=True)
            draft[name] = decode(engine, asked, MAX_TOKENS, plain=False)
        ratios.append(draft["graphs"].tokens_per_s / plain["graphs"].tokens_per_s)
        _tell(
            "plain against draft",
            batch_size=batch_size,
            deep_scale=scale,
            alpha=draft["graphs"].counts.acceptance_rate(),
            mean_accepted_length=draft["graphs"].counts.mean_accepted_length(),
            plain_tokens_per_s={name: one.tokens_per_s for name, one in plain.items()},
            draft_tokens_per_s={name: one.tokens_per_s for name, one in draft.items()},
            ratio=ratios[-1],
        )
        assert plain["graphs"].tokens_per_s > plain["eager"].tokens_per_s
        del engine, target
        torch.cuda.empty_cache()
    # A perfect draft commits 5 tokens for 4 draft steps of 3 layers and a head, and one pass of 16.
    assert ratios[0] > 1.2
