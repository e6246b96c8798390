"""A reader that goes away (`dvi ... | head -1`) is no error of the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dvi.cli.main import run
from dvi.cli.table import BY_NAME


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["completion", "bash"], *([name, "--help"] for name in BY_NAME)],
    ids=" ".join,
)
def test_a_help_text_into_a_closed_pipe_is_said_and_done(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run(words) == 0
    assert capfd.readouterr().err == ""


def test_results_into_a_closed_pipe_are_exit_1_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setenv("DVI_HOME", str(tmp_path))
        assert run(["models", "list"]) == 1


def test_the_interpreter_says_nothing_at_its_end_either(tmp_path: Path) -> None:
    dvi = f"{sys.executable} -m dvi serve --help"
    done = subprocess.run(
        ["bash", "-c", f"{dvi} | head -1; exit ${{PIPESTATUS[0]}}"],
        env={**os.environ, "DVI_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1
