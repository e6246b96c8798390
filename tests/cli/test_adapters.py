"""`dvi adapters` beside another process that changes the same registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.cli.main import FAILED, run
from dvi.registry import Registry, files
from tests.registry.fakes import Files, fields


def test_a_registry_in_use_is_one_line_and_a_failure_that_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(files, "LOCK_WAIT_S", 0.05)
    registry = Registry(tmp_path / "state" / "adapters")
    registry.publish(Files(), fields())
    before = registry.history()
    with files.exclusive(registry.root / ".lock"):
        assert run(["adapters", "promote", "1", f"state_dir={tmp_path / 'state'}"]) == FAILED
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "held by another process" in said[0]
    assert str(registry.root / ".lock") in said[0]
    assert registry.history() == before
