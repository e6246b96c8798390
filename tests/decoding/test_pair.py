"""A draft model from a folder: made from the target, opened with it, or refused in one line."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from dvi.cli.main import run
from dvi.config import DviConfig, ModelConfig
from dvi.config.validate import ConfigError, from_mapping
from dvi.decoding import decode_batch
from dvi.decoding.startup import OpenEngine, open_engine
from dvi.doctor.draft import check_draft
from dvi.doctor.finding import Level
from dvi.drafting.ground import draft_fingerprint
from dvi.modeling.pair import check_pair, read_tokens
from dvi.modeling.shorten import keep_layers
from dvi.modeling.spec import ModelRefused
from dvi.types import DecodeRequest, SamplingParams, Source
from tests.rigs import make_model_folder
from trainers.background import open_target
from trainers.draft import make_draft

TEXTS = ("one", "SELECT name, price FROM orders", "def add(left, right):")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pair") / "target"
    make_model_folder(path, overrides={"tie_word_embeddings": True})
    return path


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))


def config_of(target: Path, draft: Path, kind: str = "model") -> DviConfig:
    config = DviConfig(model=ModelConfig(path=str(target), device="cpu"))
    config.drafter.kind, config.drafter.learned = kind, "model"
    config.drafter.path = str(draft)
    config.drafter.draft_vocab_size = None
    config.serving.max_batch_size = 3
    config.serving.max_context_len = 200
    config.decoding.adaptive = False
    return config


def answers(opened: OpenEngine) -> list[tuple[int, ...]]:
    requests = []
    for index, text in enumerate(TEXTS):
        ids = opened.tokenizer.encode(text, add_special_tokens=False)
        sampling = SamplingParams(max_tokens=16, temperature=index * 0.4, seed=index)
        requests.append(DecodeRequest(text, tuple(ids), sampling))
    return [one.token_ids for one in decode_batch(opened.engine, requests)]


def pad_rows(source: Path, folder: Path, rows: int) -> None:
    """The same model with so many rows of embedding."""
    shutil.copytree(source, folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": rows}))
    tensors = load_file(folder / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    wide = torch.randn(rows, table.shape[1], generator=torch.Generator().manual_seed(1))
    wide[: min(rows, len(table))] = table[:rows]
    tensors["model.embed_tokens.weight"] = wide
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_draft_made_of_some_layers_is_what_transformers_loads(arch, tmp_path):
    source, made = tmp_path / "target", tmp_path / "new" / "draft"
    whole = make_model_folder(source, arch)
    assert run(["models", "draft", str(made), "--layers", "0,1,3", str(source)]) == 0
    short = AutoModelForCausalLM.from_pretrained(made)
    assert short.config.num_hidden_layers == 3
    whole.model.layers = torch.nn.ModuleList([whole.model.layers[i] for i in (0, 1, 3)])
    ids = torch.tensor([[5, 9, 40, 7, 100, 3]])
    with torch.no_grad():
        expected = whole(ids, use_cache=False).logits
        assert torch.equal(short(ids, use_cache=False).logits, expected)
    theirs, ours = AutoTokenizer.from_pretrained(made), AutoTokenizer.from_pretrained(source)
    assert theirs.get_vocab() == ours.get_vocab()
    check_pair(source, made)


def test_a_tied_model_stays_tied(folder, tmp_path):
    keep_layers(folder, [0], tmp_path / "draft")
    assert "lm_head.weight" not in load_file(tmp_path / "draft" / "model.safetensors")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "draft").config.tie_word_embeddings


@pytest.mark.parametrize("layers", [[], [0, 0], [0, 4]])
def test_layers_that_do_not_exist_or_come_twice_are_one_line(folder, tmp_path, layers):
    with pytest.raises(ModelRefused, match=r"distinct layers of 0\.\.3") as refused:
        keep_layers(folder, layers, tmp_path / "draft")
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("draft*"))


def test_a_folder_that_is_there_is_not_overwritten(folder, tmp_path, capsys):
    assert run(["models", "draft", str(tmp_path), "--layers", "0", str(folder)]) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["draft", "x"], ["draft", "x", "--layers", "0-2"]])
def test_a_wrong_use_of_the_verb_is_one_line(words, capsys):
    assert run(["models", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("rows", [340, 448])  # the target has 384, for 330 tokens
def test_a_copy_in_a_folder_of_its_own_is_always_right_whatever_its_padding(folder, tmp_path, rows):
    draft = tmp_path / "draft"
    pad_rows(folder, draft, rows)
    config = config_of(folder, draft)
    config.decoding.deterministic = True  # equal bits on both sides
    opened = open_engine(config)
    config.drafter.kind = "none"
    plain = open_engine(config)
    assert answers(opened) == answers(plain)
    counts = opened.engine.stats().counts.by_source[Source.NEURAL]
    assert counts.judged > 20
    assert counts.accepted == counts.judged
    assert opened.system_fingerprint == plain.system_fingerprint


def test_a_draft_of_fewer_layers_gives_the_same_answers_alone_and_beside_a_memory(folder, tmp_path):
    keep_layers(folder, [0, 3], tmp_path / "draft")
    plain = answers(open_engine(config_of(folder, tmp_path / "draft", "none")))
    for kind in ("model", "auto"):
        opened = open_engine(config_of(folder, tmp_path / "draft", kind))
        assert answers(opened) == plain
        assert opened.engine.stats().counts.by_source[Source.NEURAL].proposed > 0


def test_adapters_stand_on_the_weights_of_both_models(folder, tmp_path):
    one, other, target = tmp_path / "one", tmp_path / "other", tmp_path / "target"
    keep_layers(folder, [0, 3], one)
    keep_layers(folder, [0, 2], other)
    make_model_folder(target, seed=5)
    config = config_of(folder, one)
    base = draft_fingerprint(folder, config)
    assert draft_fingerprint(folder, config_of(folder, other)) != base
    assert draft_fingerprint(target, config_of(target, one)) != base
    assert draft_fingerprint(folder, config_of(folder, one, "auto")) == base
    config.drafter.exit_layer = 1  # nothing of the target's layers is under the draft
    assert draft_fingerprint(folder, config) == base
    assert open_target(config_of(folder, one))[1] == base == open_engine(config).base_fingerprint


def test_the_trainer_trains_every_layer_of_the_model(folder, tmp_path):
    keep_layers(folder, [0, 3], tmp_path / "draft")
    config = config_of(folder, tmp_path / "draft")
    draft = make_draft(config.drafter, open_target(config)[0], seed=0)
    modules = [lora.module for lora in draft.layout.loras]
    assert len(modules) == 2 * 7 + 1
    assert modules[8] == "draft_block.layers.1.self_attn.k_proj"


def damaged(folder: Path, draft: Path, how: str) -> None:
    """A draft folder that must be refused."""
    keep_layers(folder, [0, 3], draft)
    path = draft / "tokenizer.json"
    data = json.loads(path.read_text())
    vocab = data["model"]["vocab"]
    if how == "swapped":
        first, second = (token for token in vocab if vocab[token] in (300, 301))
        vocab[first], vocab[second] = vocab[second], vocab[first]
    if how == "shorter":
        last = max(vocab, key=vocab.__getitem__)
        del vocab[last]
        data["model"]["merges"] = data["model"]["merges"][:-1]
    path.write_text(json.dumps(data))
    settings = json.loads((draft / "config.json").read_text())
    if how == "rows":
        shutil.rmtree(draft)
        pad_rows(folder, draft, 300)
    if how == "architecture":
        settings["architectures"] = ["GPT2LMHeadModel"]
    if how == "positions":
        settings["max_position_embeddings"] = 150
    if how in ("architecture", "positions"):
        (draft / "config.json").write_text(json.dumps(settings))
    if how == "missing":
        shutil.rmtree(draft)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("swapped", r"another tokenizer: 330 tokens, the target 330; .* differs is id 300: '.+', "),
        ("shorter", r"another tokenizer: 329 tokens, the target 330; .* id 329: no token, the "),
        ("rows", r"300 rows of embedding, the target's tokens need 330: .* id 300, '"),
        ("architecture", "GPT2LMHeadModel is not supported"),
        ("positions", "150 positions"),
        ("missing", "does not exist"),
    ],
)
def test_a_model_that_cannot_draft_is_refused_in_one_line_by_engine_trainer_and_doctor(
    folder, tmp_path, how, said
):
    draft = tmp_path / "draft"
    assert len(read_tokens(folder)) == 330
    damaged(folder, draft, how)
    config = config_of(folder, draft)
    for opens in (open_engine, open_target):
        with pytest.raises(ModelRefused, match=said) as refused:
            opens(config)
        assert "\n" not in str(refused.value)
    (finding,) = check_draft(config)
    assert finding.level is Level.FAULT
    assert finding.mend


def test_the_doctor_has_a_word_on_a_draft_model_only_where_one_is_configured(folder, tmp_path):
    keep_layers(folder, [0, 3], tmp_path / "draft")
    config = config_of(folder, tmp_path / "draft")
    assert [one.level for one in check_draft(config)] == [Level.OK]
    config.drafter.kind = "block"
    assert check_draft(config) == []
    config.drafter.kind = "auto"
    assert [one.level for one in check_draft(config)] == [Level.OK]
    config.drafter = replace(config.drafter, path="owner/not-downloaded")
    assert [one.level for one in check_draft(config)] == [Level.WARNING]


@pytest.mark.parametrize("drafter", [{"kind": "model"}, {"kind": "auto", "learned": "model"}])
def test_a_draft_model_without_its_folder_is_a_config_error(drafter):
    with pytest.raises(ConfigError, match=r"needs drafter\.path.*dvi models draft"):
        from_mapping({"drafter": drafter})
    from_mapping({"drafter": {**drafter, "path": "some/folder"}})
    from_mapping({"drafter": {"learned": "model", "kind": "block"}})
