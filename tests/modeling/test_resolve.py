"""model.path: names, folders, hub ids, and the one line each failure is."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import huggingface_hub.constants
import pytest

from dvi.config import ModelConfig
from dvi.modeling import resolve
from dvi.modeling.fetch import list_models
from dvi.modeling.loading import load_target
from dvi.modeling.resolve import resolve_model_path
from dvi.modeling.spec import ModelRefused
from tests.rigs import make_model_folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class NetworkTouched(AssertionError):
    pass


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise NetworkTouched(f"network: {args}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def refusal(path: str, revision: str | None = None) -> str:
    with pytest.raises(ModelRefused) as caught:
        resolve_model_path(ModelConfig(path=path, revision=revision))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.usefixtures("no_network")
def test_default_that_is_not_fetched_names_the_command(home: Path) -> None:
    assert "dvi models fetch smollm2-135m" in refusal("smollm2-135m")
    assert list_models() == {"smollm2-135m": None}
    assert not home.exists()


@pytest.mark.usefixtures("no_network")
def test_fetched_and_own_names_are_found(home: Path) -> None:
    for name in ("smollm2-135m", "mine"):
        (home / "models" / name).mkdir(parents=True)
        (home / "models" / name / "config.json").write_text("{}")
        assert resolve_model_path(ModelConfig(path=name)) == home / "models" / name
    assert list_models() == {name: home / "models" / name for name in ("mine", "smollm2-135m")}


@pytest.mark.usefixtures("no_network")
def test_folder_counts_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for path in ("a/b", "./a/b", str(tmp_path / "a" / "b")):
        assert resolve_model_path(ModelConfig(path=path)) == tmp_path / "a" / "b"
    assert "has no config.json" in refusal("a")


@pytest.mark.usefixtures("no_network")
def test_what_is_nothing_is_said_without_network() -> None:
    assert "does not exist" in refusal("/no/such/folder")
    assert "does not exist" in refusal("./nothing")
    assert "smollm2-135m" in refusal("smollm9")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("arch", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_local_folder_never_touches_the_network(tmp_path: Path, arch: str) -> None:
    make_model_folder(tmp_path / "m", arch)
    config = ModelConfig(path=str(tmp_path / "m"))
    folder = resolve_model_path(config)
    load_target(folder, config, 2, deterministic=False, layers="all", max_context_len=64)


def test_silent_hub_is_one_line_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(resolve, "HUB_ANSWER_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        begun = time.monotonic()
        message = refusal("nobody/nothing")
        assert time.monotonic() - begun < 5
    assert "unreachable" in message


def test_refusing_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    message = refusal("nobody/nothing")
    assert "unreachable" in message
    assert "dvi models fetch" in message


@pytest.mark.usefixtures("no_network")
def test_offline_mode_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal("nobody/nothing")


def test_limits_keep_within_the_promised_15_seconds() -> None:
    assert resolve.HUB_REQUEST_TIMEOUT_S < resolve.HUB_ANSWER_TIMEOUT_S <= 13
