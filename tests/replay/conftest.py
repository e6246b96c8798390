"""The two databases: most properties of a store are the same on both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.replay.fakes import Place


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where a test makes its store."""
    if request.param == "sqlite":
        return tmp_path
    url: str = request.getfixturevalue("database")
    return url
