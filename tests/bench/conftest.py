"""A small random model and a config that measures little."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.config import BenchConfig, DviConfig
from tests.decoding.profiles import profile
from tests.rigs import make_model_folder, make_tokenizer_folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    # No head rows beyond the tokenizer's ids: we mask those, Hugging Face may choose them.
    make_model_folder(path, overrides={"vocab_size": make_tokenizer_folder(path)})
    return path


@pytest.fixture
def config(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DviConfig:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    config = DviConfig()
    config.model.path = str(model)
    config.model.num_threads = 1
    config.serving.max_context_len = 512
    # Costs are measured elsewhere; here they would be most of the time.
    profile().save(tmp_path / "costs.json")
    config.decoding.cost_profile = str(tmp_path / "costs.json")
    config.bench = BenchConfig(num_prompts=1, max_tokens=8, repeats=1, timed_steps=2, swaps=6)
    return config
