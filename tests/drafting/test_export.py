"""An exported version is a plain model: same logits, same answers, refused where it must be."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from dvi.cli.export import export_version
from dvi.cli.main import run
from dvi.config import DrafterConfig, DviConfig, ModelConfig, RegistryConfig, ServingConfig
from dvi.drafting import draft_branch, lora, make_drafter
from dvi.drafting.model import ModelDrafter
from dvi.drafting.module import DraftModule
from dvi.modeling.layer import run_layer
from dvi.modeling.loading import load_target
from dvi.modeling.plan import Segment
from dvi.modeling.shorten import keep_layers
from dvi.registry import ManifestFields, Registry
from tests.drafting.rows import SMALL, random_tensors
from tests.rigs import make_model_folder
from trainers.background import open_target

IDS = [5, 9, 40, 7, 100, 3, 61, 250, 9, 40, 7]


@dataclass
class Made:
    """A model folder, a registry with one random version for it, and its config."""

    folder: Path
    config: DviConfig
    version: int
    tensors: dict[str, torch.Tensor]


def make(tmp_path: Path, arch: str, kind: str) -> Made:
    folder = tmp_path / "model"
    make_model_folder(folder, arch)
    if kind == "model":
        keep_layers(folder, [0, 1, 3], tmp_path / "draft")
    config = DviConfig(
        state_dir=str(tmp_path / "state"),
        model=ModelConfig(path=str(folder)),
        drafter=DrafterConfig(kind=kind, path=str(tmp_path / "draft"), **SMALL),
        registry=RegistryConfig(),
        serving=ServingConfig(max_context_len=256),
    )
    target, fingerprint = open_target(config)
    branch = draft_branch(config.drafter, target)
    tensors = random_tensors(branch.layout, 4)
    module = lora.wrap(DraftModule(branch), branch.layout, torch.Generator().manual_seed(0))
    lora.load_into(module, branch.layout, tensors)
    registry = Registry(tmp_path / "state" / "adapters")
    fields = ManifestFields(fingerprint, branch.layout.drafter)
    version = registry.publish(lambda out: lora.save(module, out), fields)
    return Made(folder, config, version, tensors)


def live_logits(made: Made, version: int) -> torch.Tensor:
    """[T, V] of the drafter that the server runs, over a whole text."""
    target = load_target(
        made.folder, made.config.model, 2, deterministic=False, layers="all", max_context_len=256
    )
    _, fingerprint = open_target(made.config)
    drafter = make_drafter(made.config.drafter, target, 1, 64, fingerprint)
    registry = Registry(Path(made.config.state_dir) / "adapters")
    drafter.load(drafter.prepare(registry.read(version) if version else None))
    weights = drafter.weights
    if isinstance(drafter, ModelDrafter):
        drafter.texts[0].show(0, IDS)
        hidden = drafter._run(drafter.model.plan([drafter.texts[0].missing()]), weights.layers)
        return weights.readout.logits(drafter.model, hidden)[:, : target.spec.num_token_ids]
    plan = target.plan([Segment(0, 0, tuple(IDS))])
    hidden = target.shallow(plan, target.new_cache(4, 1, 64))
    if drafter.kind == "block":
        hidden = run_layer(weights.layers[0], hidden, plan, drafter.cache, 0)
    return weights.readout.logits(target, hidden)[:, : target.spec.num_token_ids]


def plain_logits(model: torch.nn.Module, count: int) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0, :, :count]


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        ("llama", "block"),
        ("llama", "head"),
        ("qwen2", "block"),
        ("qwen3", "block"),
        ("qwen2", "model"),
        ("qwen3", "model"),
    ],
)
def test_an_exported_version_has_the_live_draft_s_logits(arch, kind, tmp_path):
    made = make(tmp_path, arch, kind)
    for version in (made.version, 0):
        out = tmp_path / f"out{version}"
        assert export_version(made.config, version, {"--to": str(out)}) == 0
        live = live_logits(made, version)
        model = AutoModelForCausalLM.from_pretrained(out)
        assert model.config.num_hidden_layers == (2 if kind == "head" else 3)
        # Merged factors and another order of sums: rounding of float32 at logits of some ten.
        torch.testing.assert_close(plain_logits(model, live.shape[1]), live, atol=2e-4, rtol=1e-4)
        theirs, ours = (
            AutoTokenizer.from_pretrained(out),
            AutoTokenizer.from_pretrained(made.folder),
        )
        assert theirs.get_vocab() == ours.get_vocab()
        assert theirs.chat_template == ours.chat_template
    changed = live_logits(made, made.version) - live_logits(made, 0)
    assert changed.abs().max() > 0.1  # the version does something


def test_an_exported_version_as_assistant_gives_the_target_s_greedy_answer(tmp_path):
    made = make(tmp_path, "llama", "block")
    export_version(made.config, made.version, {"--to": str(tmp_path / "out")})
    target = AutoModelForCausalLM.from_pretrained(made.folder)
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    passes = []
    draft.register_forward_hook(lambda *_: passes.append(1))
    settings = {"do_sample": False, "max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
    prompt = torch.tensor([IDS])
    alone = target.generate(prompt, **settings)
    assert target.generate(prompt, assistant_model=draft, **settings).tolist() == alone.tolist()
    assert passes
    assert alone.shape[1] == len(IDS) + 30


@pytest.mark.parametrize("kind", ["block", "model"])
def test_base_and_adapter_of_a_peft_export_are_the_untrained_and_the_trained_draft(tmp_path, kind):
    made = make(tmp_path, "llama", kind)
    out = tmp_path / "pair"
    export_version(made.config, made.version, {"--to": str(out), "--peft": ""})
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "adapter", "base"]
    assert {path.name for path in (out / "adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    base = AutoModelForCausalLM.from_pretrained(out / "base")
    untrained, trained = live_logits(made, 0), live_logits(made, made.version)
    torch.testing.assert_close(
        plain_logits(base, untrained.shape[1]), untrained, atol=2e-4, rtol=1e-4
    )
    model = PeftModel.from_pretrained(base, str(out / "adapter"))
    torch.testing.assert_close(plain_logits(model, trained.shape[1]), trained, atol=2e-4, rtol=1e-4)
    merged = model.merge_and_unload()
    torch.testing.assert_close(
        plain_logits(merged, trained.shape[1]), trained, atol=2e-4, rtol=1e-4
    )


def test_peft_refuses_to_put_a_version_on_the_target(tmp_path):
    made = make(tmp_path, "llama", "block")
    target = AutoModelForCausalLM.from_pretrained(made.folder)
    version = Path(made.config.state_dir) / "adapters" / f"v{made.version:06d}"
    before = plain_logits(target, 300)
    with pytest.raises(ValueError, match="not found in the base model"):
        PeftModel.from_pretrained(target, str(version))
    assert torch.equal(plain_logits(target, 300), before)


def test_a_version_is_exported_by_its_own_shape_whatever_is_configured(tmp_path):
    made = make(tmp_path, "llama", "block")
    other = replace(made.config, drafter=DrafterConfig(kind="auto", lora_rank=9, exit_layer=1))
    out = tmp_path / "out"
    assert export_version(other, made.version, {"--to": str(out)}) == 0
    live = live_logits(made, made.version)
    model = AutoModelForCausalLM.from_pretrained(out)
    torch.testing.assert_close(plain_logits(model, live.shape[1]), live, atol=2e-4, rtol=1e-4)


def words(made: Made, *more: str) -> list[str]:
    return [
        "adapters",
        "export",
        *more,
        f"state_dir={made.config.state_dir}",
        f"model.path={made.folder}",
        "serving.max_context_len=256",
    ]


def test_the_command_writes_a_note_and_refuses_what_cannot_be_exported(tmp_path, capsys):
    made = make(tmp_path, "llama", "block")
    out = tmp_path / "deep" / "out"
    assert run(words(made, "1", "--to", str(out), "--json")) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "folder": str(out)}
    note = (out / "README.md").read_text()
    for line in ('"method": "draft_model"', "STANDALONE", "assistant_model"):
        assert line in note
    assert [path.name for path in out.parent.iterdir()] == ["out"]  # nothing half-made is left
    refusals = {
        "not empty": words(made, "1", "--to", str(out)),
        "nothing to export": words(made, "1", "--to", str(tmp_path / "a"), "drafter=memory"),
        "--to DIR": words(made, "1"),
        "v000007": words(made, "7", "--to", str(tmp_path / "b")),
        "belong to": ["adapters", "list", "--peft"],
    }
    for expected, line in refusals.items():
        assert run(line) == 2
        assert expected in capsys.readouterr().err
    assert run(words(made, "0", "--to", str(tmp_path / "c"), "drafter=none")) == 2
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "c").exists()


def test_a_version_of_another_base_is_refused(tmp_path, capsys):
    made = make(tmp_path, "llama", "block")
    make_model_folder(tmp_path / "other", "llama", seed=1)
    line = words(made, "1", "--to", str(tmp_path / "out"))
    assert run([*line, f"model.path={tmp_path / 'other'}"]) == 2
    assert "was trained on base" in capsys.readouterr().err
