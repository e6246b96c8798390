"""Reading the words after a command, help and completion; all in process and without Hydra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dvi.cli.args import UsageError, launch_request, sort_words, take_action
from dvi.cli.completion import SCRIPTS, candidates
from dvi.cli.help import command_help, overview
from dvi.cli.main import run
from dvi.cli.table import BY_NAME, COMMANDS
from dvi.config.schema import leaves

SERVE = BY_NAME["serve"]


def test_a_bare_word_is_the_model_path_and_comes_before_other_overrides() -> None:
    words = sort_words(["Qwen/Qwen3-0.6B", "serving.port=1"], SERVE)
    request = launch_request(words, SERVE)
    assert request.overrides == ("model.path='Qwen/Qwen3-0.6B'", "serving.port=1")


def test_a_second_bare_word_is_refused() -> None:
    with pytest.raises(UsageError, match="what is 'b'"):
        launch_request(sort_words(["a", "b"], SERVE), SERVE)


def test_demo_takes_no_bare_word() -> None:
    demo = BY_NAME["demo"]
    with pytest.raises(UsageError, match="what is 'a'"):
        launch_request(sort_words(["a"], demo), demo)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--port", "8001"], "write serving.port=8001"),
        (["--port=8001"], "write serving.port=8001"),
        (["--max-batch-size", "4"], "write serving.max_batch_size=4"),
        (["--confg-dir", "x"], "did you mean --config-dir"),
        (["--multirun"], "no flag --multirun"),
        (["--cfg"], "needs a value"),
    ],
)
def test_a_flag_that_does_not_exist_is_answered_with_what_to_write(
    words: list[str], answer: str
) -> None:
    with pytest.raises(UsageError, match=answer):
        sort_words(words, SERVE)


def test_hydra_flags_are_taken_in_both_spellings() -> None:
    words = ["--config-dir", "/etc/dvi", "-cn=prod", "--cfg", "job", "--info", "a=1"]
    request = launch_request(sort_words(words, SERVE), SERVE)
    assert (request.config_dir, request.config_name) == ("/etc/dvi", "prod")
    assert (request.show_config, request.show_info) == ("job", "all")
    assert request.overrides == ("a=1",)


def test_info_takes_a_following_choice_as_its_value() -> None:
    request = launch_request(sort_words(["--info", "defaults", "a=1"], SERVE), SERVE)
    assert (request.show_info, request.overrides) == ("defaults", ("a=1",))


def test_an_unknown_action_is_answered_with_the_nearest() -> None:
    adapters = BY_NAME["adapters"]
    with pytest.raises(UsageError, match="did you mean `list`"):
        take_action(sort_words(["lst"], adapters), adapters)
    with pytest.raises(UsageError, match="needs one of"):
        take_action(sort_words([], adapters), adapters)


def test_every_config_key_is_in_the_help_of_some_command_with_its_meaning() -> None:
    texts = [command_help(command) for command in COMMANDS]
    for leaf in leaves():
        assert any(f"  {leaf.key}={leaf.default_text}" in text for text in texts), leaf.key
    assert "listens" not in overview()


def test_help_names_every_command_and_the_unit_of_a_key() -> None:
    assert all(command.name in overview() for command in COMMANDS)
    assert "[s; 0..]" in command_help(SERVE)  # serving.drain_timeout_s


def test_completion_offers_commands_presets_options_values_and_keys() -> None:
    assert "serve" in candidates([""])
    assert candidates(["ad"]) == ["adapters"]
    assert candidates(["train", "objective="]) == [
        f"objective={name}" for name in ("ce", "dvi", "kl", "lk", "osd", "pg")
    ]
    assert candidates(["serve", "decoding.adaptive=f"]) == ["decoding.adaptive=false"]
    assert candidates(["serve", "serving.por"]) == ["serving.port="]
    assert candidates(["serve", "--conf"]) == ["--config-dir", "--config-name"]
    assert candidates(["adapters", "pro"]) == ["promote"]
    assert candidates(["serve", "+experiment=p"]) == ["+experiment=paper"]
    assert candidates(["nonsense", ""]) == []


@pytest.mark.parametrize("shell", ["bash"])
def test_a_completion_script_parses_and_completes_past_an_equals_sign(shell: str) -> None:
    script = SCRIPTS[shell] + (
        'dvi() { shift; printf "%s\\n" objective=dvi objective=kl; }\n'
        'COMP_LINE="dvi train objective="; COMP_POINT=${#COMP_LINE}\n'
        'COMP_WORDBREAKS=" =:"; _dvi; echo "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["dvi", "kl"]


def test_unknown_commands_exit_2_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serv"]) == 2
    assert "did you mean `dvi serve`" in capsys.readouterr().err
    assert run([]) == 2


def test_a_folder_that_somebody_put_there_is_listed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path))
    folder = tmp_path / "models" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert run(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert {name: row["fetched"] for name, row in rows.items()} == {
        "mine": "yes",
        "smollm2-135m": "no",
    }
    assert rows["mine"]["path"] == str(folder)
    assert run(["models", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == sorted(rows)


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["serve", "--help"], ["_complete", "serve", ""]]
)
def test_quick_answers_import_neither_torch_nor_hydra_and_take_under_half_a_second(
    words: list[str],
) -> None:
    code = (
        "import sys, time; start = time.process_time()\n"
        f"from dvi.cli.main import run; status = run({words!r})\n"
        "spent = time.process_time() - start\n"
        "found = [m for m in ('torch', 'hydra', 'omegaconf', 'numpy') if m in sys.modules]\n"
        "print(status, found, spent < 0.5, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    # Processor time of this process: a busy machine does not make the test fail.
    assert done.stderr.strip() == "0 [] True"
