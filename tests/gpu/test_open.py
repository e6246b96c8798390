"""From a config to answers on a pretended device: loading, measured costs, text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dvi.config import DecodingConfig, DviConfig
from dvi.decoding import decode_batch
from dvi.decoding.startup import make_buckets, open_engine
from dvi.modeling.buckets import Buckets
from dvi.types import DecodeRequest, SamplingParams
from tests.decoding.engines import LIMITS
from tests.gpu.recorder import CpuCapture
from tests.gpu.simulated import SIM, simulated_device
from tests.rigs import CPU, make_model_folder


@pytest.mark.parametrize(
    ("device", "deterministic", "wanted", "are_made"),
    [
        ("cuda", False, True, True),
        ("cpu", False, True, False),
        ("cuda", True, True, False),
        ("cuda", False, False, False),
    ],
)
def test_passes_are_recorded_on_a_gpu_where_the_mode_and_the_config_allow(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    deterministic: bool,
    wanted: bool,
    are_made: bool,
) -> None:
    monkeypatch.setattr("dvi.decoding.startup.CudaCapture", CpuCapture)
    target = SimpleNamespace(device=torch.device(device), deterministic=deterministic)
    made = make_buckets(DecodingConfig(cuda_graphs=wanted), target, LIMITS)
    assert (made is not None) == are_made
    if made is not None:
        assert (made.room.num_rows, made.room.capacity) == (LIMITS.num_rows, 512)
        assert made.max_width == LIMITS.max_draft_len + 1


def config_of(path: Path, dtype: str) -> DviConfig:
    config = DviConfig()
    config.model.path = str(path)
    config.model.dtype = dtype
    config.serving.max_batch_size = 3
    config.serving.max_context_len = 600
    config.decoding.max_draft_len = 4
    return config


@pytest.mark.parametrize("place", [CPU, SIM])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_measures_its_passes_and_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: torch.device, dtype: str
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DVI_KERNELS", "torch")
    monkeypatch.setattr("dvi.modeling.loading._choose_device", lambda _: place)
    made: list[Buckets] = []

    def buckets(_config: object, target: object, limits: object) -> Buckets | None:
        if place == CPU:
            return None
        made.append(Buckets(target, limits.num_rows, limits.row_len, 5, CpuCapture()))
        return made[0]

    monkeypatch.setattr("dvi.decoding.startup.make_buckets", buckets)
    make_model_folder(tmp_path / "model")
    with simulated_device():
        opened = open_engine(config_of(tmp_path / "model", dtype))
        recorded = sum(one.num_recorded for one in made)
        assert opened.costs is not None
        assert opened.costs.pass_s(1, 1) > 0 < opened.costs.draft_s(3)
        ids = tuple(opened.tokenizer.encode("the quick brown fox", add_special_tokens=False))
        requests = [
            DecodeRequest(f"r{n}", ids, SamplingParams(max_tokens=12, temperature=n * 0.5, seed=1))
            for n in range(3)
        ]
        answers = decode_batch(opened.engine, requests)
    assert [len(one.token_ids) for one in answers] == [12] * 3
    assert answers[0].text
    if place == SIM:
        # One row by 1, 2, 3, 5 positions, two and three rows by 1, 2, 5: what a pass of each
        # derives, and its two stacks. And a draft step for each number of rows.
        assert recorded == (4 + 3 + 3) * 3 + 3
