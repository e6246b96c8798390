"""Each fault is found, and the command that is said mends it."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.home import adapters_dir, replay_url
from dvi.doctor import environment
from dvi.doctor.environment import (
    check_device,
    check_disk,
    check_kernels,
    check_packages,
    check_threads,
)
from dvi.doctor.finding import Level
from dvi.doctor.main import examine, lines
from dvi.doctor.model import broken_weights, check_model, memory_bytes
from dvi.doctor.state import check_adapters, check_folder, check_store
from dvi.registry import Registry
from dvi.replay import open_store
from tests.doctor.findings import levels
from tests.registry.fakes import Files, fields
from tests.replay.fakes import make_trace


def test_a_good_installation_has_no_fault_and_nothing_is_made(
    config: DviConfig, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    findings = examine(config)
    assert set(levels(findings).values()) <= {Level.OK, Level.WARNING}, lines(findings)
    assert sorted(tmp_path.rglob("*")) == before


def test_every_fault_says_a_command(config: DviConfig) -> None:
    config.model.path = "smollm2-135m"
    config.model.num_threads = 4096
    config.serving.host = "0.0.0.0"
    found = [one for one in examine(config) if one.level is Level.FAULT]
    assert {one.name for one in found} == {"threads", "model", "access"}
    assert all(one.mend for one in found)
    assert next(one for one in found if one.name == "model").mend == "dvi models fetch smollm2-135m"


def test_a_cut_weight_file_is_found_by_its_header(config: DviConfig) -> None:
    path = Path(config.model.path) / "model.safetensors"
    assert broken_weights(path) == ""
    path.write_bytes(path.read_bytes()[:-1])
    assert "its header says" in broken_weights(path)
    (finding, *_) = check_model(config)
    assert (finding.name, finding.level) == ("model", Level.FAULT)
    path.write_bytes(b"not safetensors at all")
    assert broken_weights(path)
    path.unlink()
    assert "is missing" in broken_weights(path)


@pytest.mark.parametrize("content", ["{", "[]"])
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer_config.json", "model.safetensors.index.json"]
)
def test_a_damaged_file_of_the_model_is_a_fault_that_names_it(
    config: DviConfig, name: str, content: str
) -> None:
    path = Path(config.model.path) / name
    path.write_text(content)
    (finding,) = check_model(config)
    assert (finding.name, finding.level) == ("model", Level.FAULT)
    assert str(path) in finding.message
    assert finding.mend


def test_another_architecture_a_foreign_tokenizer_and_no_template_are_told(
    config: DviConfig,
) -> None:
    folder = Path(config.model.path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    words = json.loads((folder / "tokenizer_config.json").read_text())
    words.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    assert levels(check_model(config))["template"] is Level.WARNING
    config.model.chat_template = str(folder / "mine.jinja")
    assert levels(check_model(config))["template"] is Level.FAULT
    (folder / "mine.jinja").write_text("{{ messages[0].content }}")
    assert levels(check_model(config))["template"] is Level.OK
    (folder / "config.json").write_text(json.dumps(settings | {"vocab_size": 100}))
    assert levels(check_model(config))["tokenizer"] is Level.FAULT
    (folder / "config.json").write_text(json.dumps(settings | {"architectures": ["GPT2"]}))
    assert levels(check_model(config))["model"] is Level.FAULT
    (folder / "config.json").write_text("{")
    assert levels(check_model(config)) == {"model": Level.FAULT}


def test_a_context_beyond_the_models_positions_is_a_fault(config: DviConfig) -> None:
    config.serving.max_context_len = 2049  # of 2048
    assert levels(check_model(config))["model"] is Level.FAULT
    config.serving.max_context_len = 2048
    assert levels(check_model(config))["model"] is Level.OK


def test_memory_is_weights_and_rows_by_arithmetic(config: DviConfig) -> None:
    folder = Path(config.model.path)
    settings = json.loads((folder / "config.json").read_text())
    weights = (folder / "model.safetensors").stat().st_size
    config.serving.max_batch_size = 3
    config.serving.max_context_len = 1020  # + 8 + 1 = 1029, in tiles of 512: 1536
    rows = 3 * 1536 * 2 * 4 * 2 * 8 * 4  # positions, k and v, layers, kv heads, head size, bytes
    assert memory_bytes(config, folder, settings) == weights + rows
    config.serving.max_batch_size = 64
    config.serving.max_context_len = 1 << 40
    settings["max_position_embeddings"] = 1 << 50
    (folder / "config.json").write_text(json.dumps(settings))
    assert levels(check_model(config))["memory"] is Level.FAULT


def test_a_package_outside_its_range_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        environment, "requires", lambda _: ["numpy<1", "no-such-thing", 'x>1; extra == "dev"']
    )
    finding = check_packages()
    assert finding.level is Level.FAULT
    assert "numpy is" in finding.message
    assert "no-such-thing is missing" in finding.message
    assert "x" not in finding.message.split()
    assert "pip install" in finding.mend


def test_more_threads_than_cores_and_a_disk_too_small_are_faults(config: DviConfig) -> None:
    assert check_threads(config).level is not Level.FAULT
    config.model.num_threads = environment.num_cores() + 1
    assert check_threads(config).level is Level.FAULT
    assert check_disk(config).level is Level.OK
    config.replay.max_bytes = 1 << 60
    assert check_disk(config).level is Level.FAULT


def test_a_limit_on_cpu_time_that_training_shares_is_a_warning(
    config: DviConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "num_cores", lambda: 4)
    monkeypatch.setattr(environment, "has_cpu_limit", lambda: True)
    config.trainer.enabled = True
    finding = check_threads(config)
    assert finding.level is Level.WARNING
    assert "cpuset" in finding.mend
    config.trainer.enabled = False
    assert check_threads(config).level is Level.OK


def test_kernels_that_could_be_compiled_and_are_not_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "can_run", lambda: True)
    monkeypatch.setattr(environment, "compiled_files", lambda: [])
    finding = check_kernels()
    assert finding.level is Level.WARNING
    assert "apt install gcc" in finding.mend
    assert "pip install" in finding.mend
    monkeypatch.setattr(environment, "compiled_files", lambda: [Path("_kernels.so")])
    assert check_kernels().level is Level.OK
    monkeypatch.setattr(environment, "can_run", lambda: False)
    assert check_kernels().level is Level.OK


def test_a_gpu_that_is_asked_for_and_not_there_is_a_fault(config: DviConfig) -> None:
    config.model.device = "cuda"
    assert check_device(config, has_gpu=False).level is Level.FAULT
    config.model.device = "auto"
    assert check_device(config, has_gpu=False).level is Level.OK


def make_state(config: DviConfig) -> Path:
    state = Path(config.state_dir or "")
    state.mkdir(mode=0o700)
    with open_store(replay_url(config), config.replay) as store:
        store.append("w", [make_trace(f"r{i}") for i in range(20)])
    return state


def test_a_state_folder_that_others_can_read_is_a_fault_and_its_command_mends_it(
    config: DviConfig,
) -> None:
    state = make_state(config)
    assert check_folder(config).level is Level.OK
    for path, mode in ((state, 0o750), (state / "replay.sqlite", 0o644)):
        path.chmod(mode)
        finding = check_folder(config)
        assert finding.level is Level.FAULT
        subprocess.run(finding.mend.split(), check=True)
        assert check_folder(config).level is Level.OK


def test_a_whole_store_is_counted_and_a_damaged_or_newer_one_is_a_fault(config: DviConfig) -> None:
    state = make_state(config)
    path = state / "replay.sqlite"
    assert check_store(config).level is Level.OK
    assert ", 20 traces" in check_store(config).message
    with sqlite3.connect(path) as database:
        database.execute("UPDATE dvi_schema SET version = version + 1")
    assert "pip install --upgrade" in check_store(config).mend
    data = bytearray(path.read_bytes())
    data[4096 * 2 :] = os.urandom(len(data) - 4096 * 2)
    for extra in state.glob("replay.sqlite-*"):
        extra.unlink()
    path.write_bytes(bytes(data))
    finding = check_store(config)
    assert finding.level is Level.FAULT
    assert "mv " in finding.mend


def test_a_damaged_version_is_named_with_what_drafts_instead(config: DviConfig) -> None:
    assert check_adapters(config).level is Level.OK
    registry = Registry(adapters_dir(config))
    for _ in range(2):
        version = registry.publish(Files(), fields())
    registry.promote(1, "test")
    assert check_adapters(config).level is Level.OK
    weights = registry.root / f"v{version:06d}" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    finding = check_adapters(config)
    assert finding.level is Level.FAULT
    assert f"version {version}" in finding.message
    assert "in service: version 1" in finding.message
    subprocess.run(finding.mend.split(), check=True)
    assert check_adapters(config).level is Level.OK
