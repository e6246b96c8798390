"""`dvi replay purge` from outside: what it counts, asks, erases and says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from dvi.cli.main import run
from dvi.cli.purge import parse_time
from dvi.config import ReplayConfig
from dvi.registry import Registry
from dvi.replay import open_store
from serving.state_folder import hash_name, user_key
from tests.registry.fakes import Files, fields
from tests.replay.fakes import make_trace


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two answers of ann, one of bob, and one version that may have learned from them."""
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DVI_REPLAY_URL", raising=False)
    folder = tmp_path / "state"
    folder.mkdir()
    key = user_key(folder, folder)
    with open_store(f"sqlite:///{folder / 'replay.sqlite'}", ReplayConfig()) as store:
        for name, user in (("r1", "ann"), ("r2", "ann"), ("r3", "bob")):
            store.append("w", [replace(make_trace(name), user_hash=hash_name(key, user))])
    Registry(folder / "adapters").publish(Files(), fields())
    return folder


def purge(state: Path, *words: str) -> int:
    return run(["replay", "purge", f"state_dir={state}", *words])


def rows(state: Path) -> int:
    with open_store(f"sqlite:///{state / 'replay.sqlite'}", ReplayConfig()) as store:
        return store.stats().rows


def test_a_user_is_found_by_name_and_nobody_else_is_erased(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert purge(state, "--user", "ann", "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "selected": 2, "erased": 2, "overwritten": True, "adapters_learned_since": [1]
    }  # fmt: skip
    assert rows(state) == 1


def test_a_dry_run_counts_and_names_the_versions_and_erases_nothing(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert purge(state, "--request", "r3", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "1 answers selected, 0 erased" in said
    assert "may have learned from them: 1" in said
    assert rows(state) == 3


@pytest.mark.parametrize(("answer", "left", "status"), [("y\n", 0, 0), ("\n", 3, 1), ("", 3, 1)])
def test_it_asks_and_only_a_yes_erases(
    answer: str, left: int, status: int, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(answer))
    assert purge(state, "--before", "2999-01-01") == status
    assert rows(state) == left


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "wants --before TIME, --request ID or --user NAME"),
        (("--before", "yesterday"), "36h or 30d"),
        (("--request",), "needs a value"),
    ],
)
def test_a_wrong_purge_exits_2_with_one_line(
    words: Sequence[str], said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert purge(state, *words) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert rows(state) == 3


def test_times_are_dates_or_ages() -> None:
    assert parse_time("36h", 1e6) == 1e6 - 36 * 3600
    assert parse_time("2d", 1e6) == 1e6 - 2 * 86400
    assert parse_time("1970-01-02T00:00:00+00:00", 0.0) == 86400.0


def test_purging_where_there_is_no_store_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert purge(tmp_path / "none", "--request", "x") == 0
    assert "no replay store" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
