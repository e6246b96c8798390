"""The config as plain data: schema, checks, files, paths."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from dvi.config import DviConfig, ModelConfig
from dvi.config.cores import decode_threads
from dvi.config.home import dvi_home, replay_url, state_dir
from dvi.config.io import dump_config, load_config
from dvi.config.schema import groups, leaves
from dvi.config.secrets import mask
from dvi.config.validate import ConfigError, from_mapping, to_mapping


def _nested(key: str, value: object) -> dict[str, object]:
    head, _, rest = key.partition(".")
    return {head: _nested(rest, value) if rest else value}


def test_every_leaf_has_a_meaning_and_a_default_that_passes_its_own_check() -> None:
    for leaf in leaves():
        assert leaf.meaning, leaf.key
        from_mapping(_nested(leaf.key, leaf.default))


def test_mapping_round_trip_keeps_every_value() -> None:
    config = DviConfig(state_dir="/x")
    config.serving.port, config.drafter.block_layer, config.decoding.adaptive = 1234, 5, False
    assert from_mapping(to_mapping(config)) == config


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("serving.prot", "serving.port"),
        ("servng.port", "serving.port"),
        ("learning_rate", "trainer.learning_rate"),
        ("trainer.port", "serving.port"),
        ("registy.path", "registry.path"),
        ("decoding.max_draft_length", "decoding.max_draft_len"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(key: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`; did you mean `{near}`"):
        from_mapping(_nested(key, 1))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("serving.port", 65536, "0..65535"),
        ("serving.port", -1, "0..65535"),
        ("serving.port", "80", "must be int"),
        ("serving.port", True, "must be int"),
        ("serving.port", None, "must not be null"),
        ("drafter.kind", "blok", "auto, block, head, model, memory, none"),
        ("trainer.learning_rate", float("nan"), "finite"),
        ("drafter.lora_rank", 0, r"1\.\."),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(key: str, value: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        from_mapping(_nested(key, value))


def test_bounds_are_inclusive() -> None:
    assert from_mapping({"serving": {"port": 65535}}).serving.port == 65535
    assert from_mapping({"serving": {"port": 0}}).serving.port == 0


def test_an_integer_is_a_float_but_text_is_not_a_number() -> None:
    rate = from_mapping({"trainer": {"learning_rate": 1}}).trainer.learning_rate
    assert isinstance(rate, float)
    with pytest.raises(ConfigError, match="must be float"):
        from_mapping({"trainer": {"learning_rate": "1"}})


def test_draft_length_may_not_exceed_its_maximum() -> None:
    with pytest.raises(ConfigError, match="draft_len"):
        from_mapping({"decoding": {"draft_len": 5, "max_draft_len": 4}})


def test_a_dumped_config_is_private_complete_and_holds_no_secret(tmp_path: Path) -> None:
    config = DviConfig()
    config.serving.api_key = "sekret-key"
    config.replay.url = "postgresql+psycopg://user:pass-word@host/db"
    config.run.seed = 7
    path = tmp_path / "new" / "config.json"
    dump_config(config, path)
    text = path.read_text()
    assert "sekret-key" not in text
    assert "pass-word" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["config.json"]
    config.serving.api_key = config.replay.url = None
    assert load_config(path) == config


def test_an_unreadable_dump_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=str(path)):
        load_config(path)


def test_paths_do_not_depend_on_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    before = state_dir(DviConfig())
    monkeypatch.chdir(tmp_path)
    assert state_dir(DviConfig()) == before == tmp_path / "home" / "state"
    monkeypatch.delenv("DVI_HOME")
    assert dvi_home().is_absolute()


def test_the_replay_url_key_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DviConfig(state_dir="/s")
    monkeypatch.delenv("DVI_REPLAY_URL", raising=False)
    assert replay_url(config) == "sqlite:////s/replay.sqlite"
    monkeypatch.setenv("DVI_REPLAY_URL", "sqlite:///env")
    assert replay_url(config) == "sqlite:///env"
    config.replay.url = "sqlite:///key"
    assert replay_url(config) == "sqlite:///key"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("postgresql://me:hunter2@db/x failed", "hunter2"),
        ("serving.api_key=hunter2,other", "hunter2"),
        ("api_key: hunter2\nport: 8000", "hunter2"),
        ("api_key: 'hunter2 with space'", "hunter2"),
        ('{"api_key": "hunter2"}', "hunter2"),
        ("DVI_API_KEY=hunter2", "hunter2"),
    ],
)
def test_mask_hides_secrets_and_is_idempotent(text: str, hidden: str) -> None:
    masked = mask(text)
    assert hidden not in masked
    assert mask(masked) == masked


def test_mask_leaves_ordinary_text_alone() -> None:
    text = "api_key: null\nurl: http://127.0.0.1:8000/v1 at 12:30\nurl: sqlite:////a/b"
    assert mask(text) == text


def test_nobody_is_told_that_the_code_of_a_repository_runs() -> None:
    with pytest.raises(ConfigError, match="never run"):
        from_mapping({"model": {"trust_remote_code": True}})


def test_decoding_takes_the_cores_of_this_process_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {2, 5}, raising=False)
    assert decode_threads(ModelConfig()) == 2
    assert decode_threads(ModelConfig(num_threads=7)) == 7


def test_groups_are_those_of_the_root() -> None:
    assert {"model", "drafter", "serving", "demo"} <= set(groups())
    assert "state_dir" not in groups()


def test_config_imports_neither_torch_nor_hydra() -> None:
    code = (
        "import sys, dvi.config.io, dvi.config.home, dvi.config.validate\n"
        "print([m for m in ('torch', 'hydra', 'omegaconf', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
