"""A whole installation for each test, in a home folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.config import DviConfig
from tests.rigs import make_model_folder


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("DVI_HOME", str(home))
    for name in ("DVI_API_KEY", "DVI_ADMIN_KEY", "DVI_REPLAY_URL", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_model_folder(path)
    return path


@pytest.fixture
def config(tmp_path: Path, pristine: Path) -> DviConfig:
    """A model folder of its own, which a test may damage."""
    folder = tmp_path / "model"
    folder.mkdir()
    for path in pristine.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    made = DviConfig(state_dir=str(tmp_path / "state"))
    made.model.path = str(folder)
    made.serving.port = 0
    return made
