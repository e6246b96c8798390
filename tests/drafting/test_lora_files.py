"""What PEFT writes, what it reads back, and on what it refuses to put it."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from dvi.drafting import AdapterRefused, DraftModule, lora
from tests.drafting.rows import make_bench, random_tensors
from tests.rigs import build_target


def fresh(bench, seed=0):
    layout = bench.branch.layout
    return lora.wrap(DraftModule(bench.branch), layout, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["block", "head"])
def test_a_folder_holds_two_files_with_the_layout_s_tensors_only(kind, tmp_path):
    bench = make_bench(kind, build_target(dtype=torch.float32))
    layout = bench.branch.layout
    module = fresh(bench)
    tensors = random_tensors(layout, 1)
    lora.load_into(module, layout, tensors)
    lora.save(module, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    saved = load_file(tmp_path / "adapter_model.safetensors")
    layout.check(saved)
    assert all(torch.equal(saved[name], tensors[name]) for name in tensors)
    # each module named so that no target has it
    assert all(name.startswith("base_model.model.draft_") for name in saved)


def test_the_live_side_reads_scales_where_peft_writes_them(tmp_path):
    bench = make_bench("block", build_target(dtype=torch.float32))
    lora.save(fresh(bench), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["alpha_pattern"] == bench.branch.layout.alphas()
    assert config["rank_pattern"] == bench.branch.layout.ranks()


def test_peft_alone_reads_a_folder_back(tmp_path):
    bench = make_bench("block", build_target(dtype=torch.float32))
    module = fresh(bench)
    lora.load_into(module, bench.branch.layout, random_tensors(bench.branch.layout, 2))
    lora.save(module, tmp_path)
    again = PeftModel.from_pretrained(DraftModule(bench.branch), str(tmp_path))
    before, after = lora.adapter_tensors(module), lora.adapter_tensors(again)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", ["block", "head"])
def test_peft_refuses_to_put_an_adapter_on_the_target(kind, tmp_path):
    bench = make_bench(kind, build_target(dtype=torch.float32))
    module = fresh(bench)
    lora.load_into(module, bench.branch.layout, random_tensors(bench.branch.layout, 3))
    lora.save(module, tmp_path)
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    hugging_face = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, **shape)
    ).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        before = hugging_face(ids).logits
        with pytest.raises(ValueError, match="not found in the base model"):
            PeftModel.from_pretrained(hugging_face, str(tmp_path))
        assert torch.equal(hugging_face(ids).logits, before)


def test_the_generator_alone_decides_the_first_values(tmp_path):
    bench = make_bench("block", build_target(dtype=torch.float32))
    folders = []
    for number, ambient in enumerate((1, 2)):
        torch.manual_seed(ambient)
        state = torch.get_rng_state()
        folders.append(tmp_path / str(number))
        folders[-1].mkdir()
        lora.save(fresh(bench, seed=5), folders[-1])
        assert torch.equal(torch.get_rng_state(), state)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    other = lora.adapter_tensors(fresh(bench, seed=6))
    first = load_file(folders[0] / "adapter_model.safetensors")
    assert not torch.equal(
        first[bench.branch.layout.head.name_a], other[bench.branch.layout.head.name_a]
    )


def test_version_0_has_a_drawn_factor_and_a_zero_one_and_comes_back_by_reset():
    bench = make_bench("block", build_target(dtype=torch.float32))
    layout = bench.branch.layout
    module = fresh(bench)
    first = lora.adapter_tensors(module)
    for shape in layout.loras:
        assert float(first[shape.name_a].abs().min()) > 0
        assert float(first[shape.name_b].abs().max()) == 0
    lora.load_into(module, layout, random_tensors(layout, 4))
    lora.reset(module, torch.Generator().manual_seed(0))
    again = lora.adapter_tensors(module)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_refused_load_changes_nothing():
    bench = make_bench("block", build_target(dtype=torch.float32))
    module = fresh(bench)
    before = lora.adapter_tensors(module)
    tensors = random_tensors(bench.branch.layout, 4)
    del tensors[bench.branch.layout.head.name_b]
    with pytest.raises(AdapterRefused, match="lora_B"):
        lora.load_into(module, bench.branch.layout, tensors)
    after = lora.adapter_tensors(module)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_training_and_saving_leave_the_target_s_storage_alone(tmp_path):
    # an in-place update of a shared head would be seen here: rows of the tied embedding move
    target = build_target(dtype=torch.float32, tie_embeddings=True)
    bench = make_bench("block", target)
    embedding = target.embedding.clone()
    module = fresh(bench)
    params = [p for p in module.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=1.0)
    select = torch.tensor([(0, i) for i in range(6)])
    hidden = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    for _ in range(2):
        logits = lora.draft_logits(module, hidden, torch.arange(6)[None], torch.tensor([6]), select)
        logits[:, 0].sum().backward()
        optimizer.step()
    lora.save(module, tmp_path)
    assert torch.equal(target.embedding, embedding)
    assert module.base_model.model.draft_head.base_layer.weight.data_ptr() == (
        target.embedding.data_ptr()
    )
