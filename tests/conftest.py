"""Shared by all rooms: the log that lets the full tier resume where it stopped, and PostgreSQL.

Owns `--full-log FILE` and one database server a worker; knows no test.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import INSTALL, Cluster, find_programs, running_cluster

ROOT = Path(__file__).resolve().parent.parent
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
        """One line when the test body ran, or when its set-up did not come through."""
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


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full-log FILE`."""
    parser.addoption("--full-log", default=None, help="log of the full tier; makes it resumable")


def pytest_configure(config: pytest.Config) -> None:
    """Install the log if asked for."""
    path = config.getoption("--full-log")
    if path is not None:
        config.pluginmanager.register(FullLog(Path(path), source_hash()))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server of this worker, with a password; skipped where there is none."""
    programs = find_programs()
    if programs is None:
        pytest.skip(INSTALL)
    with running_cluster(programs) as started:
        yield started


@pytest.fixture
def database(cluster: Cluster) -> str:
    """The URL of an empty PostgreSQL database."""
    return cluster.new_database()
