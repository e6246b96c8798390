"""One tiny model folder for the whole room, and a home that nobody shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.rigs import make_model_folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_model_folder(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVI_HOME", str(home))
        for name in ("DVI_API_KEY", "DVI_ADMIN_KEY", "DVI_REPLAY_URL"):
            patch.delenv(name, raising=False)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield home
        torch.set_num_threads(threads)
