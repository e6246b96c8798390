"""Image, service and example configs against the program that they start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.home import shared_dir
from dvi.launch.compose import compose_config
from dvi.launch.request import LaunchRequest
from serving.auth import AccessRules, check_exposure

ROOT = Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
EXAMPLES = sorted(path.stem for path in (DEPLOY / "examples").glob("*.yaml"))


def compose_example(name: str) -> DviConfig:
    request = LaunchRequest("serve", config_dir=str(DEPLOY / "examples"), config_name=name)
    return compose_config(request)


def words_of_entrypoint(tmp_path: Path, *words: str) -> list[str]:
    """What the image's entry point hands to `dvi`, or prints itself."""
    (tmp_path / "dvi").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "dvi").chmod(0o755)
    done = subprocess.run(
        ["sh", str(DEPLOY / "entrypoint.sh"), *words],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_image_without_words_says_what_has_to_be_given(tmp_path: Path) -> None:
    said = "\n".join(words_of_entrypoint(tmp_path))
    assert "DVI_API_KEY" in said
    assert "replay.log_content" in said


def test_the_image_serves_beyond_loopback_and_a_users_word_comes_last(tmp_path: Path) -> None:
    words = words_of_entrypoint(tmp_path, "serve", "serving.host=127.0.0.1", "a b")
    assert words == ["serve", "serving.host=0.0.0.0", "serving.host=127.0.0.1", "a b"]
    assert compose_config(LaunchRequest("serve", tuple(words[1:3]))).serving.host == "127.0.0.1"
    assert words_of_entrypoint(tmp_path, "models", "list") == ["models", "list"]


def test_the_image_does_not_serve_without_a_key_and_a_choice_about_content(tmp_path: Path) -> None:
    command, *overrides = words_of_entrypoint(tmp_path, "serve")
    config = compose_config(LaunchRequest(command, tuple(overrides)))
    with pytest.raises(ValueError, match="set DVI_API_KEY"):
        check_exposure(config, AccessRules())
    with pytest.raises(ValueError, match=r"replay\.log_content=true or false"):
        check_exposure(config, AccessRules(api_keys=("secret",)))


def dockerfile() -> list[list[str]]:
    """Instructions of the recipe, continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_runs_as_a_numbered_user_and_bakes_in_no_secret() -> None:
    lines = dockerfile()
    last_stage = lines[max(i for i, words in enumerate(lines) if words[0] == "FROM") :]
    (user,) = [words[1] for words in last_stage if words[0] == "USER"]
    assert all(int(number) > 0 for number in user.split(":"))
    given = [word for words in lines if words[0] in ("ENV", "ARG") for word in words[1:]]
    assert "DVI_HOME=/data" in given
    assert not [word for word in given if re.match(r"(DVI_(?!HOME)|HF_|WANDB_)", word)]
    assert "log_content=" not in " ".join(" ".join(words) for words in lines)


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert kept[0] == "*"
    for words in dockerfile():
        if words[0] == "COPY" and not words[1].startswith("--from"):
            for source in words[1:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in kept, source
    sources = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert {f"!{name}" for name in sources} <= set(kept)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_composes_and_is_allowed_to_serve_with_a_key(name: str) -> None:
    config = compose_example(name)
    assert check_exposure(config, AccessRules(api_keys=("secret",))) is True
    assert config.serving.api_key is None
    page = (DEPLOY / "examples" / f"{name}.yaml").read_text()
    assert "password" not in page.lower().replace("user:password@host", "")


def test_several_machines_share_what_the_lease_protects() -> None:
    config = compose_example("several_machines")
    assert config.trainer.enabled
    assert shared_dir(config) == Path("/srv/dvi/adapters")
    assert config.registry.path is not None
    assert config.replay.url is None  # it holds a password: the environment has it


def test_the_arithmetic_of_the_gpu_example_is_that_of_its_numbers() -> None:
    config = compose_example("gpu")
    assert config.model.path == "Qwen/Qwen3-8B"  # 36 layers, 8 key-value heads of 128
    position = 2 * 36 * 8 * 128 * 2  # keys and values, two bytes each
    total = position * config.serving.max_batch_size * config.serving.max_context_len
    page = (DEPLOY / "examples" / "gpu.yaml").read_text()
    assert f"{position:,} bytes a position" in page
    assert f"take {total / 1e9:.1f} GB" in page


def unit() -> dict[str, str]:
    lines = (DEPLOY / "systemd" / "dvi.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#[")


def test_the_service_gets_longer_to_stop_than_the_server_drains() -> None:
    config = compose_example("one_host")
    assert float(unit()["TimeoutStopSec"]) > config.serving.drain_timeout_s + 10
    assert unit()["RestartPreventExitStatus"] == "2"
    assert unit()["User"] != "root"


def test_the_service_file_is_one_that_systemd_accepts(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here (Debian: apt install systemd)")
    text = (DEPLOY / "systemd" / "dvi.service").read_text()
    path = tmp_path / "dvi.service"
    # The program is not installed on this machine; another one stands in its place.
    path.write_text(text.replace("/opt/dvi/bin/dvi", sys.executable))
    done = subprocess.run(
        [program, "verify", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("dvi.service")]
    assert (done.returncode, said) == (0, [])
