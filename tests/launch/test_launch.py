"""Composing, run folders, sweeps, logs; tasks are plain functions."""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.config.validate import ConfigError
from dvi.launch import folder
from dvi.launch.app import run_app
from dvi.launch.compose import compose_config, parse_overrides
from dvi.launch.folder import make_run_folder
from dvi.launch.logs import LineFormatter, set_up_logging
from dvi.launch.request import JobResult, LaunchRequest, Outcome, quoted


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A DVI_HOME of the test's own, and the root logger as it was."""
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    for name in ("DVI_REPLAY_URL", "DVI_API_KEY", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "")  # so that what a launch sets is undone as well
        monkeypatch.delenv(name)
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in handlers:
            handler.close()
    root.handlers, root.level = handlers, level


def _request(*overrides: str, multirun: bool = False) -> LaunchRequest:
    return LaunchRequest("train", overrides, multirun=multirun)


def test_the_defaults_of_conf_are_those_of_the_dataclasses() -> None:
    assert compose_config(_request()) == DviConfig()


def test_presets_only_set_keys_of_their_group() -> None:
    plain = compose_config(_request())
    config = compose_config(_request("drafter=none", "tracking=none", "objective=dvi"))
    assert (config.drafter.kind, config.tracking.kind, config.objective.kind) == (
        "none",
        "none",
        "dvi",
    )
    assert config.objective.pg_weight > 0
    assert config.trainer == plain.trainer


def test_the_schedule_of_the_paper_spans_as_many_traces_as_its_authors_code_spans_prompts() -> None:
    """40 and 80, one step each there; steps are what the learner counts."""
    config = compose_config(_request("objective=dvi"))
    steps = (config.objective.warmup_steps, config.objective.ramp_steps)
    assert [one / config.trainer.steps_per_trace for one in steps] == [40, 80]


def test_typed_paths_count_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = compose_config(_request("state_dir=here", "registry.path=../there"))
    assert config.state_dir == str(tmp_path / "here")
    assert Path(config.registry.path or "") == tmp_path / "../there"


def test_a_run_gets_a_private_folder_with_hydras_files_and_masked_secrets(tmp_path: Path) -> None:
    seen: list[tuple[DviConfig, Path]] = []

    def task(config: DviConfig, folder: Path) -> Outcome:
        logging.getLogger("dvi.test").info(
            "key %s url %s", config.serving.api_key, config.replay.url
        )
        seen.append((config, folder))
        return Outcome(3)

    url = "postgresql://me:hunter2@h/d"
    status = run_app(_request("serving.api_key=hunter2-key", f"replay.url={url}"), task, print)
    assert status == 3
    ((config, folder),) = seen
    assert (config.serving.api_key, config.replay.url) == ("hunter2-key", url)
    assert os.environ["DVI_REPLAY_URL"] == url  # children find it there
    assert folder.parent == tmp_path / "home" / "runs" / "train"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in (folder / ".hydra").iterdir()} == {
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    }
    assert "visible to others" in "".join(texts)
    assert "hunter2" not in "".join(texts)


def test_a_tasks_exception_passes_through(capsys: pytest.CaptureFixture[str]) -> None:
    def task(config: DviConfig, folder: Path) -> Outcome:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        run_app(_request(), task, print)
    assert "Error executing job" not in capsys.readouterr().err


def test_a_filled_run_folder_is_refused_without_resume(tmp_path: Path) -> None:
    config = DviConfig()
    config.run.dir = str(tmp_path / "run")
    folder = make_run_folder("train", config, {})
    (folder / "file").touch()
    with pytest.raises(ConfigError, match=r"run\.resume=true"):
        make_run_folder("train", config, {})
    config.run.resume = True
    assert make_run_folder("train", config, {}) == folder


def test_all_ranks_of_a_launch_share_the_folder_that_rank_0_made() -> None:
    env = {"WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    first = make_run_folder("train", DviConfig(), {**env, "RANK": "0"})
    assert make_run_folder("train", DviConfig(), {**env, "RANK": "1"}) == first
    other = make_run_folder("train", DviConfig(), {**env, "RANK": "0", "MASTER_PORT": "29501"})
    assert other != first


@pytest.mark.parametrize("days", [-1, 1])  # old, or made before the clock was set back
def test_a_rank_does_not_follow_the_pointer_of_another_day(
    days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "_WAIT_S", 0.05)
    env = {"WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    run = make_run_folder("train", DviConfig(), {**env, "RANK": "0"})
    (pointer,) = run.parent.glob(".launch-*")
    then_s = time.time() + days * 86_400
    os.utime(pointer, (then_s, then_s))
    with pytest.raises(ConfigError, match="rank 0"):
        make_run_folder("train", DviConfig(), {**env, "RANK": "1"})


def test_two_launches_never_share_a_folder() -> None:
    folders = {make_run_folder("train", DviConfig(), {}) for _ in range(5)}
    assert len(folders) == 5


def _sweep(task, *overrides: str) -> tuple[int, list[JobResult]]:
    told: list[JobResult] = []
    return run_app(_request(*overrides, multirun=True), task, told.extend), told


def test_a_sweep_survives_a_failing_job_whose_traceback_is_in_its_own_log_at_once(
    tmp_path: Path,
) -> None:
    logs: list[str] = []  # of job 1, as job 2 finds it

    def task(config: DviConfig, folder: Path) -> Outcome:
        if config.run.seed == 2:
            raise RuntimeError("job two broke")
        if config.run.seed == 3:
            logs.append((folder.parent / "1" / "log.txt").read_text())
        return Outcome(0, value=float(config.run.seed))

    status, told = _sweep(task, "run.seed=1,2,3")
    assert status == 1
    assert [(job.status, job.value) for job in told] == [(0, 1.0), (1, None), (0, 3.0)]
    assert [job.overrides for job in told] == [(f"run.seed={seed}",) for seed in (1, 2, 3)]
    (sweep,) = (tmp_path / "home" / "runs" / "train").iterdir()
    assert [job.folder for job in told] == [sweep / str(number) for number in range(3)]
    assert "Traceback" in logs[0]
    assert "job two broke" in logs[0]
    assert not (sweep / "0" / "log.txt").exists()


def test_a_value_that_one_job_cannot_have_fails_that_job_only() -> None:
    seen: list[int] = []

    def task(config: DviConfig, folder: Path) -> Outcome:
        seen.append(config.trainer.batch_size)
        return Outcome()

    status, told = _sweep(task, "trainer.batch_size=0,4")
    assert status == 1
    assert seen == [4]
    assert [job.status for job in told] == [1, 0]
    assert "`trainer.batch_size` must be in 1.." in (told[0].folder / "log.txt").read_text()


def test_a_sweep_without_a_failure_is_done() -> None:
    status, told = _sweep(lambda config, folder: Outcome(), "run.seed=1,2")
    assert status == 0
    assert len(told) == 2


def test_a_sweep_refuses_an_unknown_key_before_any_job() -> None:
    with pytest.raises(ConfigError, match=r"did you mean `run\.seed`"):
        run_app(_request("run.sed=1,2", multirun=True), lambda *_: Outcome(), print)


def test_log_lines_are_one_line_and_masked_in_both_formats() -> None:
    record = logging.LogRecord(
        "dvi.x", logging.INFO, "f", 1, "a\nb abcd1234 postgresql://u:pw@h", (), None
    )
    text = LineFormatter("text", ("abcd1234",)).format(record)
    row = json.loads(LineFormatter("json", ("abcd1234",)).format(record))
    for shown in (text, row["message"]):
        assert "abcd1234" not in shown
        assert "pw" not in shown
    assert "\n" not in text
    assert (row["level"], row["logger"]) == ("info", "dvi.x")


@pytest.mark.parametrize(
    "value", ["it's", "back\\slash", "end\\", "both\\'", "\\\\'\\", "a=b,c", "null", "1", "[x]", ""]
)
def test_quoting_brings_any_text_through_hydras_grammar(value: str) -> None:
    (override,) = parse_overrides([f"model.path={quoted(value)}"])
    assert str(override.value()) == value
    assert compose_config(_request(f"model.path={quoted(value)}")).model.path == value


def test_a_log_file_that_cannot_be_written_costs_its_lines_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    set_up_logging(DviConfig(), tmp_path)
    logging.getLogger("dvi.test").warning("first")
    (tmp_path / "log.txt").unlink()
    (tmp_path / "log.txt").mkdir()  # cannot even be opened
    set_up_logging(DviConfig(), tmp_path)
    logging.getLogger("dvi.test").warning("second")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rsplit(" ", 1)[-1] for line in lines] == ["first", "second"]
