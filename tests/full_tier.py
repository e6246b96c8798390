"""The full tier: a log that lets it resume where it stopped, and time for its long tests.

Owns what `--full-log FILE` does; knows no test.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SLOW_TIMEOUT_S = 1200
SOURCES = ("conf", "dvi", "serving", "trainers", "tests", "pyproject.toml", "requirements.lock")


def source_hash() -> str:
    """Changes with any file that a test could depend on."""
    digest = hashlib.sha256()
    for name in SOURCES:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in (".py", ".yaml", ".toml", ".lock") and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class FullLog:
    """Appends one JSON line a test and leaves out the tests that passed on the same sources."""

    def __init__(self, path: Path, sources: str) -> None:
        self._path = path
        self._sources = sources

    def passed(self) -> set[str]:
        """Tests that need not run again."""
        if not self._path.is_file():
            return set()
        rows = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        return {
            row["test"]
            for row in rows
            if row["sources"] == self._sources and row["outcome"] == "passed"
        }

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what passed before; pytest counts it as deselected."""
        done = self.passed()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
        items[:] = [item for item in items if item.nodeid not in done]
        print(f"full tier: {len(done)} passed before on these sources, {len(items)} to run")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line when the test body ran, or when its set-up did not come through.

        Parallel workers report to the process that started them, which alone writes.
        """
        if "PYTEST_XDIST_WORKER" in os.environ:
            return
        if report.when != "call" and report.outcome == "passed":
            return
        row = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            "date": time.strftime("%Y-%m-%dT%H:%M:%S"),
            "sources": self._sources,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A resumed run that has nothing left to do has passed."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.passed():
            session.exitstatus = pytest.ExitCode.OK


def give_time(items: list[pytest.Item]) -> None:
    """Slow tests get as long as the whole gate, unless they say otherwise."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
