"""The program from outside: exit statuses, one-line errors, what it leaves on disk."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path

import pytest

from dvi import __version__
from tests.cli.program import run_dvi
from tests.rigs import make_model_folder

ROOT = Path(__file__).resolve().parent.parent.parent


def _one_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "serving.prot=1"), "did you mean `serving.port`"),
        (("serve", "+serving.prot=1"), "did you mean `serving.port`"),
        (("serve", "drafter=blok"), "did you mean `drafter=block`"),
        (("serve", "serving.port=x"), "`serving.port` must be int"),
        (("serve", "serving.port=99999"), "must be in 0..65535"),
        (("train", "a=[b"), "cannot read the override"),
        (("serve", "--config-dir", "/no/such/folder"), "no such folder"),
        (("serve", "run.resume=true"), "run.resume=true needs run.dir"),
    ],
)
def test_a_wrong_config_exits_2_with_one_line_and_leaves_nothing(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    start_s = time.monotonic()
    done = run_dvi(*words, home=tmp_path / "home", cwd=tmp_path)
    assert done.returncode == 2
    assert said in _one_line(done.stderr)
    # The contract says 5 s on an idle machine; a run takes 1 s there.
    assert time.monotonic() - start_s < 30
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_in_a_users_yaml_is_found_too(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "prod.yaml").write_text("defaults: [config, _self_]\nserving: {prot: 1}\n")
    words = ("serve", "--config-dir", str(folder), "--config-name", "prod")
    done = run_dvi(*words, home=tmp_path / "home")
    assert done.returncode == 2
    assert "did you mean `serving.port`" in _one_line(done.stderr)
    (folder / "prod.yaml").write_text("defaults: [config, _self_]\nserving: {port: 1}\n")
    done = run_dvi(*words, "--cfg", "job", "--package", "serving", home=tmp_path / "home")
    assert done.returncode == 0
    assert "port: 1" in done.stdout


def test_cfg_prints_the_composed_config_with_secrets_masked(tmp_path: Path) -> None:
    words = (
        "serve",
        "drafter=none",
        "drafter.exit_layer=2",
        "serving.api_key=hunter2-key",
        "replay.url=postgresql://me:hunter2@h/d",
        "--cfg",
        "all",
    )
    done = run_dvi(*words, home=tmp_path / "home", cwd=tmp_path)
    assert done.returncode == 0
    assert "kind: none" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_experiment_sets_several_groups(tmp_path: Path) -> None:
    done = run_dvi("serve", "+experiment=paper", "--cfg", "job", home=tmp_path)
    assert "kind: head" in done.stdout
    assert "kind: dvi" in done.stdout


def test_a_missing_model_folder_is_one_line_on_the_way_to_serving(tmp_path: Path) -> None:
    done = run_dvi("serve", str(tmp_path / "nowhere"), "serving.port=0", home=tmp_path / "home")
    assert done.returncode == 2
    assert "nowhere" in _one_line(done.stderr)
    done = run_dvi("serve", "serving.port=0", home=tmp_path / "home")
    assert done.returncode == 2
    assert "dvi models fetch smollm2-135m" in _one_line(done.stderr)


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path) -> None:
    model = tmp_path / "model"
    make_model_folder(model)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ("serve", str(model), f"serving.port={port}", "serving.max_context_len=256")
        done = run_dvi(*words, home=tmp_path / "home")
    assert done.returncode == 1
    assert str(port) in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_commands_that_only_read_create_nothing_and_say_so(tmp_path: Path) -> None:
    home = tmp_path / "home"
    done = run_dvi("adapters", "list", "--json", home=home)
    assert (done.returncode, json.loads(done.stdout)["versions"]) == (0, [])
    assert "no adapters" in done.stderr
    done = run_dvi("replay", "stats", home=home)
    assert done.returncode == 0
    assert "no replay store" in done.stderr
    assert run_dvi("models", "list", home=home).returncode == 0
    assert not home.exists()


def test_promoting_what_is_not_there_exits_2(tmp_path: Path) -> None:
    done = run_dvi("adapters", "promote", "3", home=tmp_path / "home")
    assert done.returncode == 2
    assert not (tmp_path / "home").exists()


def test_version_is_ours(tmp_path: Path) -> None:
    done = run_dvi("--version", home=tmp_path)
    assert done.stdout.split() == ["dvi", __version__]
