"""state.json: who makes it, who migrates, who refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvi.cli.main import run
from dvi.config import DviConfig
from dvi.config.state_file import STATE_FORMAT, read_state, settle_state
from dvi.doctor.finding import Level
from dvi.doctor.state import check_folder
from dvi.tracking.wandb_names import group_id
from serving.state_folder import locked_state_folder


def test_a_server_gives_its_folder_an_id_that_stays(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with locked_state_folder(folder):
        first = read_state(folder)
    assert first is not None
    assert first.format == STATE_FORMAT
    assert (folder / "state.json").stat().st_mode & 0o777 == 0o600
    with locked_state_folder(folder):
        assert read_state(folder) == first
    assert group_id(folder) == f"dvi-{first.id}"
    assert {path.name for path in folder.iterdir()} == {"state.json", "server.lock"}


def test_a_folder_of_before_the_file_keeps_its_wandb_group(tmp_path: Path) -> None:
    before = group_id(tmp_path)
    settle_state(tmp_path)
    assert group_id(tmp_path) == before
    (tmp_path / "wandb" / "group-id").unlink()
    assert group_id(tmp_path) == before


def test_reading_makes_nothing(tmp_path: Path) -> None:
    assert read_state(tmp_path / "none") is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({"format": STATE_FORMAT + 1, "id": "0" * 12}), "pip install --upgrade"),
        ('{"format": 1, "i', "is damaged: mv"),
        ("[]", "is damaged: mv"),
    ],
)
def test_a_newer_or_torn_file_is_refused_in_one_line_and_left_alone(
    text: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DVI_REPLAY_URL", raising=False)
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(ValueError, match=said), locked_state_folder(tmp_path):
        pass
    assert run(["adapters", "list", f"state_dir={tmp_path}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    finding = check_folder(DviConfig(state_dir=str(tmp_path)))
    assert finding.level is Level.FAULT
    assert said.removeprefix("is damaged: ") in f"{finding.message}: {finding.mend}"
    assert (tmp_path / "state.json").read_text() == text
