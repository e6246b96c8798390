"""The full tier resumes where it stopped, on the same sources only."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.full_tier import FullLog

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


def report(test: str, outcome: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(test, ("f", 0, test), {}, outcome, None, when, duration=1.5)


def test_only_what_passed_on_these_sources_is_left_out(tmp_path: Path) -> None:
    log = FullLog(tmp_path / "full.jsonl", "one")
    assert log.passed() == set()
    for one in (
        report("a", "passed"),
        report("b", "failed"),
        report("c", "passed", "setup"),
        report("d", "failed", "setup"),
    ):
        log.pytest_runtest_logreport(one)
    assert log.passed() == {"a"}
    assert FullLog(tmp_path / "full.jsonl", "two").passed() == set()
    rows = [json.loads(line) for line in (tmp_path / "full.jsonl").read_text().splitlines()]
    assert [(row["test"], row["outcome"], row["seconds"]) for row in rows] == [
        ("a", "passed", 1.5),
        ("b", "failed", 1.5),
        ("d", "failed", 1.5),
    ]
    items = [SimpleNamespace(nodeid=name) for name in "abe"]
    left_out: list[SimpleNamespace] = []

    def leave_out(items: list[SimpleNamespace]) -> None:
        left_out.extend(items)

    hook = SimpleNamespace(pytest_deselected=leave_out)
    log.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)  # type: ignore[arg-type]
    assert [one.nodeid for one in items] == ["b", "e"]
    assert [one.nodeid for one in left_out] == ["a"]


def test_a_parallel_worker_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    FullLog(tmp_path / "full.jsonl", "one").pytest_runtest_logreport(report("a", "passed"))
    assert not (tmp_path / "full.jsonl").exists()


def test_the_script_goes_on_from_a_log_that_is_there(tmp_path: Path) -> None:
    """Before conftest is read an option is unknown, and a word that is a file becomes the root."""
    log = tmp_path / "full.jsonl"
    log.touch()
    lines = (ROOT / "scripts" / "test.sh").read_text().splitlines()
    calls = [line.split('"$bin/pytest"')[1] for line in lines if "--full-log" in line]
    words = [shlex.split(call.replace("$log", str(log))) for call in calls]
    assert len(words) == 2
    assert words[0][-1] == words[1][-1]
    run = [sys.executable, "-m", "pytest", "--markers", *words[1]]
    subprocess.run(run, check=True, capture_output=True, cwd=ROOT)
