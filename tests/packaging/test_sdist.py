"""The source distribution: what the README shows and the suite needs travels with the code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from dvi import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("conf", "deploy", "docs", "dvi", "scripts", "serving", "tests", "trainers")
BUILD = "import setuptools.build_meta as backend; backend.build_sdist('dist')"


def test_the_sdist_holds_every_file_of_the_checkout(tmp_path: Path) -> None:
    made = shutil.ignore_patterns("__pycache__", ".*", "*.so")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=made)
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, tmp_path)
    wanted = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"README.md", "requirements.lock", "tests/rigs.py"} < wanted
    subprocess.run(
        [sys.executable, "-c", BUILD], cwd=tmp_path, check=True, timeout=120, capture_output=True
    )
    name = f"dvi_serving-{__version__}"
    with tarfile.open(tmp_path / "dist" / f"{name}.tar.gz") as file:
        inside = {one.name.removeprefix(f"{name}/") for one in file.getmembers() if one.isfile()}
    assert wanted - inside == set()
