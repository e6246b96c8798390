"""Fingerprints change with what they stand for and with nothing else."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from dvi.modeling import fingerprint
from dvi.modeling.fingerprint import base_fingerprint, system_fingerprint
from dvi.types import Verification
from tests.rigs import build_target, make_model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model_folder(path)
    return path


def test_base_depends_on_weights_tokenizer_exit_and_block(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    want = base_fingerprint(folder, 2, 2, memory)
    assert base_fingerprint(folder, 2, 3, memory) != want
    assert base_fingerprint(folder, 3, 2, memory) != want
    assert base_fingerprint(folder, 2, 2, memory, quantization="int8") != want
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        other = tmp_path / name.replace(".", "-")
        shutil.copytree(folder, other)
        content = bytearray((other / name).read_bytes())
        content[-3] ^= 1
        (other / name).write_bytes(content)
        assert base_fingerprint(other, 2, 2, memory) != want


def test_base_does_not_depend_on_place_or_memory(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    want = base_fingerprint(folder, 2, 2, tmp_path / "a.json")
    assert base_fingerprint(tmp_path / "copy", 2, 2, tmp_path / "b.json") == want
    for broken in (b"broken", b"\xff\xfe"):
        (tmp_path / "a.json").write_bytes(broken)
        assert base_fingerprint(folder, 2, 2, tmp_path / "a.json") == want
    unwritable = tmp_path / "a.json" / "file.json"
    assert base_fingerprint(folder, 2, 2, unwritable) == want


def test_files_are_read_once_and_again_when_touched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = fingerprint._hash_file
    monkeypatch.setattr(fingerprint, "_hash_file", lambda f: read.append(f.name) or real(f))
    memory = tmp_path / "hashes.json"
    base_fingerprint(folder, 2, 2, memory)
    assert sorted(read) == ["config.json", "model.safetensors", "tokenizer.json"]
    base_fingerprint(folder, 2, 3, memory)
    assert len(read) == 3
    assert len(json.loads(memory.read_text())) == 3
    os.utime(folder / "tokenizer.json", ns=(1, 1))
    base_fingerprint(folder, 2, 2, memory)
    assert read[3:] == ["tokenizer.json"]


def test_files_that_are_gone_or_were_changed_are_forgotten(folder: Path, tmp_path: Path) -> None:
    memory = tmp_path / "hashes.json"
    base_fingerprint(folder, 2, 2, memory)
    for _ in range(3):
        shutil.copytree(folder, tmp_path / "other")
        base_fingerprint(tmp_path / "other", 2, 2, memory)
        os.utime(tmp_path / "other" / "config.json", ns=(1, 1))
        base_fingerprint(tmp_path / "other", 2, 2, memory)
        assert len(json.loads(memory.read_text())) == 6
        shutil.rmtree(tmp_path / "other")


def test_system_fingerprint_depends_on_mode_dtype_base_and_quantization() -> None:
    fast = build_target(dtype=torch.float32)
    same = build_target(dtype=torch.float32, exit_layer=3)
    want = system_fingerprint(fast, "base", "none")
    assert want.startswith("fp_")
    assert system_fingerprint(same, "base", "none") == want
    others = {
        system_fingerprint(fast, "other", "none"),
        system_fingerprint(fast, "base", "int8"),
        system_fingerprint(fast, "base", "none", Verification.REJECTION),
        system_fingerprint(build_target(dtype=torch.bfloat16), "base", "none"),
        system_fingerprint(build_target(dtype=torch.float32, deterministic=True), "base", "none"),
    }
    assert want not in others
    assert len(others) == 5
