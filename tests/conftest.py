"""Shared by all rooms: the log and the time limits of the full tier, and PostgreSQL.

Owns the command line's additions and one database server a worker; knows no test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.full_tier import FullLog, give_time, source_hash
from tests.postgres import INSTALL, Cluster, find_programs, running_cluster


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full-log FILE`."""
    parser.addoption("--full-log", default=None, help="log of the full tier; makes it resumable")


def pytest_configure(config: pytest.Config) -> None:
    """Install the log if asked for."""
    path = config.getoption("--full-log")
    if path is not None:
        config.pluginmanager.register(FullLog(Path(path), source_hash()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests may take long."""
    give_time(items)


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
    return cluster.empty_database()
