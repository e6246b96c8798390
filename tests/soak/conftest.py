"""A home that nobody shares, and the interpreter's pace of a server process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from serving.main import SWITCH_INTERVAL_S
from tests.serving.conftest import own_home

__all__ = ["own_home"]


@pytest.fixture(autouse=True)
def switch_interval() -> Iterator[None]:
    """Clients and server share one interpreter here: at 5 ms they would wait for each other."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    yield
    sys.setswitchinterval(before_s)
