"""Small files: whole or absent, private, and apart from each other while they are written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dvi.config.files import part_of, replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_as_a_whole_and_private(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "state.json"
    for data in (b"old" * 9, b"new"):
        replace_file(path, data, durable=durable)
        assert path.read_bytes() == data
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]


def test_two_writers_of_one_path_never_touch_each_others_bytes(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    with (
        part_of(path, b"paused", durable=False) as ours,
        part_of(path, b"running", durable=False) as theirs,
    ):
        assert (ours.read_bytes(), theirs.read_bytes()) == (b"paused", b"running")
        ours.replace(path)
        assert path.read_bytes() == b"paused"
        theirs.replace(path)
    assert path.read_bytes() == b"running"
    assert [one.name for one in tmp_path.iterdir()] == ["control.json"]


def test_a_write_that_fails_leaves_the_old_bytes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    replace_file(path, b"old", durable=True)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "away" / "state.json", b"new", durable=False)
    assert not (tmp_path / "away").exists()
