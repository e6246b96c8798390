"""Processes of ours take nothing from the folder that the user stands in."""

from __future__ import annotations

import subprocess
from pathlib import Path

import dvi
from dvi.config.child import module_command

PACKAGES = Path(dvi.__file__).parent.parent


def test_modules_of_the_current_folder_are_not_imported_by_a_child(
    tmp_path: Path,
) -> None:
    (tmp_path / "dvi").mkdir()
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the current directory')\n")
    found = subprocess.run(
        module_command("dvi", "--version"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (found.returncode, dvi.__version__ in found.stdout) == (0, True), found.stderr


def test_nothing_else_starts_a_module() -> None:
    sources = [
        p for name in ("dvi", "trainers", "serving") for p in PACKAGES.glob(f"{name}/**/*.py")
    ]
    assert len(sources) > 100
    by_hand = [str(p) for p in sources if 'sys.executable, "-' in p.read_text(encoding="utf-8")]
    assert by_hand == [str(PACKAGES / "dvi" / "config" / "child.py")]
