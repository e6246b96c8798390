"""What `dvi doctor` says of a store that is not a file."""

from __future__ import annotations

import sys

import pytest

from dvi.config import DviConfig
from dvi.doctor.finding import Level
from dvi.doctor.state import check_store
from dvi.replay import ReplayStoreError, open_store
from tests.postgres import Cluster


def config_of(url: str) -> DviConfig:
    config = DviConfig()
    config.replay.url = url
    return config


def test_a_database_that_answers_is_good_with_and_without_a_store_and_none_is_made(
    database: str, cluster: Cluster
) -> None:
    config = config_of(database)
    for _ in range(2):
        found = check_store(config)
        assert found.level is Level.OK
        assert "holds no store yet" in found.message
        assert cluster.password not in found.message
    open_store(database, config.replay).close()
    assert "holds no store yet" not in check_store(config).message


def test_a_wrong_password_is_a_fault_of_one_line_without_it(cluster: Cluster) -> None:
    found = check_store(config_of(cluster.url("postgres", "hunter2")))
    assert found.level is Level.FAULT
    assert "password authentication failed" in found.message
    assert found.mend.startswith("psql postgresql://dvi:***@127.0.0.1:")
    assert "\n" not in found.message


def test_a_missing_driver_is_mended_by_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    found = check_store(config_of("postgresql+psycopg://u:p@h/d"))
    assert (found.level, found.mend) == (Level.FAULT, "pip install 'dvi-serving[postgres]'")


def test_a_url_that_is_no_store_says_what_to_set() -> None:
    found = check_store(config_of("mysql://h/d"))
    assert found.level is Level.FAULT
    assert found.mend.startswith("export DVI_REPLAY_URL=postgresql+psycopg://")
    with pytest.raises(ReplayStoreError):
        open_store("mysql://h/d", DviConfig().replay)
