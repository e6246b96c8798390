"""From folder to target: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
import torch
from safetensors import safe_open

from dvi.config import ModelConfig
from dvi.modeling import hf
from dvi.modeling.loading import available_bytes, load_target, wants_packed_copy
from dvi.modeling.plan import Segment
from dvi.modeling.spec import SUPPORTED, ModelRefused
from dvi.modeling.target import TargetModel
from tests.modeling.helpers import whole_cache
from tests.rigs import build_target, make_model_folder, make_tokenizer_folder, random_weights


def load(
    folder: Path,
    layers: Literal["all", "shallow"] = "all",
    *,
    dtype: str = "float32",
    max_context_len: int = 256,
    block_layer: int | None = None,
) -> TargetModel:
    return load_target(
        folder,
        ModelConfig(dtype=dtype),
        2,
        deterministic=False,
        layers=layers,
        max_context_len=max_context_len,
        block_layer=block_layer,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    make_model_folder(path, layers=5)
    return path


def edited(folder: Path, tmp_path: Path, changes: Mapping[str, object]) -> Path:
    """A folder whose config.json differs; the other files are links."""
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    return tmp_path


def test_shallow_reads_only_what_the_trainer_needs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    class Recorder:
        def __init__(self, file: safe_open) -> None:
            self.file = file

        def __enter__(self) -> Recorder:
            self.file.__enter__()
            return self

        def __exit__(self, *exc: object) -> None:
            self.file.__exit__(*exc)

        def keys(self) -> list[str]:
            return self.file.keys()

        def get_tensor(self, name: str) -> torch.Tensor:
            names.append(name)
            return self.file.get_tensor(name)

    monkeypatch.setattr(hf, "safe_open", lambda *a, **k: Recorder(safe_open(*a, **k)))
    load(folder, "shallow", block_layer=4)
    layers = {int(n.split(".")[2]) for n in names if n.startswith("model.layers.")}
    assert layers == {0, 1, 4}
    others = {n for n in names if not n.startswith("model.layers.")}
    assert others == {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def test_shallow_stack_equals_that_of_the_whole_model(folder: Path) -> None:
    whole, part = load(folder), load(folder, "shallow")
    segments = [Segment(0, 0, (5, 6, 7, 8, 9)), Segment(1, 0, (3,))]
    want = whole.shallow(whole.plan(segments), whole_cache(whole))
    cache = part.new_cache(part.exit_layer, 3, 200)
    assert torch.equal(part.shallow(part.plan(segments), cache), want)
    assert torch.equal(part.layer_weights(2).gate, whole.layer_weights(2).gate)
    with pytest.raises(KeyError):
        part.layer_weights(3)


def test_dtype_follows_the_config(folder: Path) -> None:
    assert load(folder, dtype="bfloat16").head.dtype == torch.bfloat16
    assert load(folder).embedding.dtype == torch.float32


def test_a_sharded_checkpoint_loads_alike(folder: Path, tmp_path: Path) -> None:
    model = make_model_folder(tmp_path, layers=5)
    (tmp_path / "model.safetensors").unlink()
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    want, got = load(folder), load(tmp_path)
    assert torch.equal(got.head, want.head)
    assert torch.equal(got.layer_weights(4).down, want.layer_weights(4).down)


def test_unsupported_architecture_is_refused_with_the_list(folder: Path, tmp_path: Path) -> None:
    changed = edited(folder, tmp_path, {"architectures": ["GPT2LMHeadModel"]})
    with pytest.raises(ModelRefused) as caught:
        load(changed)
    message = str(caught.value)
    assert "GPT2LMHeadModel is not supported" in message
    for name in SUPPORTED:
        assert name in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("arch", "overrides"),
    [
        ("mistral", {"sliding_window": 128}),
        ("qwen2", {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 2}),
        ("qwen3", {"sliding_window": 128, "use_sliding_window": True, "max_window_layers": 2}),
    ],
)
def test_short_sliding_window_is_refused(
    tmp_path: Path, arch: str, overrides: Mapping[str, object]
) -> None:
    make_model_folder(tmp_path, arch, overrides=overrides)
    with pytest.raises(ModelRefused, match=r"window of 128 .* serving.max_context_len=129"):
        load(tmp_path, max_context_len=129)
    load(tmp_path, max_context_len=128)


def test_unused_sliding_window_is_no_reason(tmp_path: Path) -> None:
    make_model_folder(
        tmp_path, "qwen2", overrides={"sliding_window": 128, "use_sliding_window": False}
    )
    load(tmp_path, max_context_len=256)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized checkpoints"),
        ({"hidden_act": "gelu"}, "only silu MLPs"),
        ({"mlp_bias": True}, "only silu MLPs"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope type dynamic is not supported; supported: default",
        ),
        ({"max_position_embeddings": 100}, "max_context_len=256 is more than the model's 100"),
        ({"num_hidden_layers": 6}, "has no tensor model.layers.5"),
        ({"intermediate_size": 50}, r"is \(48, 32\), config says \(50, 32\)"),
    ],
)
def test_what_we_cannot_run_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, changes: Mapping[str, object], reason: str
) -> None:
    with pytest.raises(ModelRefused, match=reason):
        load(edited(folder, tmp_path, changes))


def test_broken_files_are_one_line_refusals(folder: Path, tmp_path: Path) -> None:
    cases = [("config.json", "{"), ("config.json", "[]"), ("model.safetensors", "no tensors")]
    for number, (name, content) in enumerate(cases):
        broken = tmp_path / str(number)
        broken.mkdir()
        for file in folder.iterdir():
            (broken / file.name).symlink_to(file)
        (broken / name).unlink()
        (broken / name).write_text(content)
        with pytest.raises(ModelRefused, match="cannot read") as caught:
            load(broken)
        assert "\n" not in str(caught.value)


def test_a_folder_without_safetensors_or_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "weights"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(folder / name)
    with pytest.raises(ModelRefused, match="no tokenizer in"):
        load(bare)
    empty = tmp_path / "tokenizer"
    make_tokenizer_folder(empty)
    (empty / "config.json").symlink_to(folder / "config.json")
    with pytest.raises(ModelRefused, match="no safetensors weights in"):
        load(empty)


def test_layers_outside_the_model_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"block_layer=5 must lie in 0\.\.4"):
        load(folder, block_layer=5)
    with pytest.raises(ValueError, match=r"exit_layer=5 must lie in 1\.\.4"):
        load_target(folder, ModelConfig(), 5, deterministic=False, layers="all", max_context_len=64)


def test_the_packed_copy_is_held_where_it_leaves_a_gibibyte() -> None:
    spec = build_target(layers=3).spec
    weights = random_weights(spec, 0, torch.float32, 2, 1.0)
    matrices = 3 * (32 * (32 + 16 + 16) + 32 * 32 + 3 * 32 * 48) + 64 * 32  # layers, head
    enough = 4 * matrices + 2**30
    assert wants_packed_copy("auto", weights, enough)
    assert not wants_packed_copy("auto", weights, enough - 1)
    assert wants_packed_copy("auto", weights, None)
    assert wants_packed_copy("always", weights, 0)
    assert not wants_packed_copy("never", weights, 2**60)


def test_available_memory_is_less_than_a_pebibyte_or_unknown() -> None:
    available = available_bytes()
    assert available is None or 2**20 < available < 2**50
