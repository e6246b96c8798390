"""A headless Chromium for the tests of the dashboard, found on this machine.

Owns the search and the list of what went wrong on a page; knows no property.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """DVI_CHROMIUM, else the first of the usual names."""
    named = os.environ.get("DVI_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Tab:
    """A page and everything that it complained about."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def until(self, selector: str, pattern: str) -> str:
        """The text of the first such element whose text matches; waits for it.

        Not by a function in the page: its policy forbids evaluating strings.
        """
        found = self.page.locator(selector).filter(has_text=re.compile(pattern)).first
        found.wait_for()
        return str(found.inner_text())


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser. Skips the test where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium here (Debian: apt install chromium-headless-shell)")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def open_tab(browser: Any, url: str, **context: Any) -> Iterator[Tab]:
    """The page at ``url`` in a session of its own."""
    session = browser.new_context(**context)
    page = session.new_page()
    tab = Tab(page)
    page.on(
        "console", lambda said: tab.complaints.append(said.text) if said.type == "error" else None
    )
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    page.on("request", lambda request: tab.hosts.add(request.url.split("/")[2]))
    page.goto(url)
    yield tab
    session.close()
