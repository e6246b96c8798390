"""The command: resume arm by arm, the check of the sources, the time limit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dvi.config import DviConfig
from dvi.study import main as study
from dvi.study.arms import Arm, quick
from dvi.study.results import ArmResult, ResultFile
from tests.study.test_measures import result, row


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arms that were run; each takes no time and shows the same."""
    names: list[str] = []

    def run_arm(arm: Arm, *_: object) -> ArmResult:
        names.append(arm.name)
        return result([row("a", "1010")] * 30, name=arm.setting.name, seed=arm.seed)

    monkeypatch.setattr(study, "record", lambda *_: {})
    monkeypatch.setattr(study, "run_arm", run_arm)
    monkeypatch.setattr(study, "resolve_model_path", lambda _: Path())
    monkeypatch.setattr(study, "base_fingerprint", lambda *_: "base")
    monkeypatch.setattr(study, "set_thread_modes", lambda _: None)
    monkeypatch.setattr(study, "config_of", lambda _: DviConfig())
    monkeypatch.setattr(study, "write", lambda *_: None)
    monkeypatch.setattr(study, "print_section", lambda _: None)
    return names


def words(folder: Path, *more: str) -> list[str]:
    return ["--quick", "--out", str(folder), *more]


def test_a_run_goes_on_with_the_arms_that_are_missing(ran: list[str], tmp_path: Path) -> None:
    assert study.main(words(tmp_path, "--only", "head")) == 0
    assert study.main(words(tmp_path, "--seeds", "2")) == 0
    missing = [arm.name for arm in quick(2) if "head" not in arm.name]
    assert ran == [*(f"kl x head, seed {seed}" for seed in range(3)), *missing]
    ran.clear()
    assert study.main(words(tmp_path, "--seeds", "2")) == 0
    assert ran == []


def test_an_arm_that_was_killed_is_run_again(
    ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Callable[..., ArmResult] = study.run_arm

    def killed_at_third(arm: Arm, *rest: object) -> ArmResult:
        if len(ran) == 2:
            raise KeyboardInterrupt
        return whole(arm, *rest)

    monkeypatch.setattr(study, "run_arm", killed_at_third)
    with pytest.raises(KeyboardInterrupt):
        study.main(words(tmp_path))
    monkeypatch.setattr(study, "run_arm", whole)
    assert study.main(words(tmp_path)) == 0
    assert ran == [arm.name for arm in quick()]


def test_arms_of_other_sources_are_refused_in_one_line(
    ran: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main(words(tmp_path, "--only", "head")) == 0
    assert study.main(words(tmp_path, "trainer.learning_rate=0.001")) == 2
    assert "other sources" in capsys.readouterr().err
    assert len(ran) == 3


def test_no_arm_is_started_that_would_end_after_the_limit(
    ran: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main(words(tmp_path, "--minutes", "0")) == 2  # nothing is done: no tables
    assert ran == []
    assert "15 arms are left" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--only", "nothing"], ["--seeds", "0"], ["--adapters", "missing"]]
)
def test_words_that_mean_nothing_are_refused(
    ran: list[str], tmp_path: Path, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert study.main(words(tmp_path, *wrong)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert ran == []


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "arms.jsonl", "sources")
    one = result([row("a", "10", replaced="01", version=3)])
    file.add(one)
    file.add(one)
    assert file.read() == [one, one]
