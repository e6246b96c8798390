"""The wheel: built, installed into an empty folder, and run with the checkout out of sight."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from dvi import __version__
from dvi.native.find import can_run

ROOT = Path(__file__).resolve().parent.parent.parent
MADE = shutil.ignore_patterns("__pycache__", "*.so")
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
SOURCES = ("conf", "dvi", "serving", "trainers", "pyproject.toml", "setup.py", "MANIFEST.in")


@dataclass(frozen=True, slots=True)
class Installed:
    """A wheel and the folder that it was installed into, beside an empty home."""

    wheel: Path
    site: Path
    home: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The installed `dvi`, run in a folder outside any checkout, as a new user."""
        hidden = ("DVI_", "XDG_", "PYTHON", "HYDRA_")
        clean = {name: v for name, v in os.environ.items() if not name.startswith(hidden)}
        return subprocess.run(
            [str(self.site / "bin" / "dvi"), *words],
            cwd=self.home,
            env={**clean, "HOME": str(self.home), "PYTHONPATH": str(self.site)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def build_wheel(folder: Path, **changes: str) -> Path:
    """From a copy, since building leaves folders in the source tree; ``changes`` of environment."""
    source = folder / "source"
    source.mkdir()
    for name in (*SOURCES, "README.md", "LICENSE"):
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=MADE)
        else:
            shutil.copy(path, source / name)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    env = {**os.environ, **changes}
    subprocess.run([*build, str(source)], check=True, timeout=120, env=env)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)
    return wheel


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    home, site = folder / "home", folder / "site"
    home.mkdir()
    wheel = build_wheel(folder)
    install = [*PIP, "install", "--no-deps", "--no-compile", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    return Installed(wheel, site, home)


def test_the_wheel_holds_three_packages_with_conf_and_static_files(installed: Installed) -> None:
    inside = set(zipfile.ZipFile(installed.wheel).namelist())
    tops = {name.split("/")[0] for name in inside}
    assert tops == {"dvi", "serving", "trainers", f"dvi_serving-{__version__}.dist-info"}
    for folder, place in (("conf", "dvi/conf"), ("serving/static", "serving/static")):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file()]
        assert files
        wanted = {f"{place}/{path.relative_to(ROOT / folder)}" for path in files}
        assert wanted == {name for name in inside if name.startswith(f"{place}/")}


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or not shutil.which("gcc"),
    reason="the kernels are compiled on Linux, x86-64, by a C compiler",
)
def test_the_wheel_holds_the_compiled_kernels_without_their_sources(installed: Installed) -> None:
    folder = "dvi/native/"
    inside = zipfile.ZipFile(installed.wheel).namelist()
    suffixes = {Path(name).suffix for name in inside if name.startswith(folder)}
    assert suffixes == {".py", ".so"}
    assert installed.wheel.name.endswith("linux_x86_64.whl")
    find = "from dvi.native.library import library; print(library())"
    env = {**os.environ, "PYTHONPATH": str(installed.site)}
    run = [sys.executable, "-c", find]
    done = subprocess.run(
        run, cwd=installed.home, env=env, capture_output=True, text=True, check=True
    )
    assert ("None" in done.stdout) is not can_run()
    assert done.stderr == ""


def test_without_a_compiler_there_is_a_wheel_without_kernels(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build_wheel(tmp_path, CC="/bin/false")).namelist()
    assert "dvi/native/library.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_what_an_index_shows_points_to_nothing_that_it_does_not_have(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as file:
        (name,) = (one for one in file.namelist() if one.endswith("/METADATA"))
        shown = file.read(name).decode()
    assert "Description-Content-Type: text/markdown" in shown
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "![" not in shown
    for words in ("dvi serve", "docs/api.md", "CONTRIBUTING.md"):
        assert words in shown


def test_the_installed_program_says_its_version_and_lists_models(installed: Installed) -> None:
    done = installed.run("--version")
    assert (done.returncode, done.stdout.split()) == (0, ["dvi", __version__]), done.stderr
    done = installed.run("models", "list", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    # Not in the folder it runs in and not beside the program: in the user's own data folder.
    data = installed.home / ".local" / "share" / "dvi"
    assert [row["path"] for row in rows] == [str(data / "models" / row["name"]) for row in rows]
    assert rows
    assert list(installed.home.iterdir()) == []


def test_the_installed_program_composes_its_own_conf(installed: Installed) -> None:
    done = installed.run("serve", "drafter=head", "--cfg", "job")
    assert done.returncode == 0, done.stderr
    assert "kind: head" in done.stdout
    assert "max_batch_size: 8" in done.stdout
    assert list(installed.home.iterdir()) == []
