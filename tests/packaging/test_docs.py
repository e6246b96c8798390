"""Pages that are made from the code, and links between pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import reference_docs

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def headings(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them from its headings."""
    titles = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


def test_the_page_of_config_keys_is_what_the_config_says() -> None:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "config_docs.py")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    written = (ROOT / "docs" / "config.md").read_text(encoding="utf-8")
    assert written == made, "run: .venv/bin/python scripts/config_docs.py > docs/config.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or anchor in headings(found), target


def test_every_page_of_docs_is_named_in_the_readme_or_by_a_page_that_is() -> None:
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        text = page.read_text(encoding="utf-8")
        for path in (ROOT / "docs").glob("*.md"):
            if path not in reached and path != page and f"{path.name}" in text:
                reached.add(path)
                queue.append(path)
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == {path.name for path in reached}


def test_the_reference_is_built_without_a_warning_and_holds_what_rooms_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone.md").write_text("of a room that was removed")
    assert reference_docs.main(tmp_path) == 0
    assert capsys.readouterr().err == ""
    index = (tmp_path / "index.md").read_text()
    linked = set(re.findall(r"\]\(([^)]+)\)", index))
    assert linked == {path.name for path in tmp_path.iterdir()} - {"index.md"}
    assert "#### `append`" in (tmp_path / "dvi.replay.md").read_text()


def test_an_exported_name_without_a_docstring_is_a_warning() -> None:
    page = reference_docs.page("dvi.replay")
    assert reference_docs.warnings("dvi.replay", page) == []
    without = page.replace("### `open_store`", "")
    assert reference_docs.warnings("dvi.replay", without) == [
        "dvi.replay.open_store has no docstring"
    ]
    (line,) = reference_docs.warnings("dvi.replay", page + "\n```\n")
    assert "left open" in line


def test_pictures_are_small_and_found_from_the_page_itself() -> None:
    shown = 0
    for page in PAGES:
        for target in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path = (
                page.parent / target
            )  # relative: read in a checkout, a mirror, or an unpacked sdist
            assert path.read_bytes().startswith(b"\x89PNG"), target
            assert path.stat().st_size < 150_000, target
            shown += 1
    assert shown >= 2
