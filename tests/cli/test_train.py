"""`dvi train` as a user types it: a tiny model folder and a small file, to the published candidate.

The run is tracked by W&B without a login, and read back from the offline folder that it leaves.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dvi.cli.main import run
from dvi.registry import Registry
from dvi.tracking.wandb_names import group_id
from tests.cli.program import run_dvi
from tests.rigs import make_model_folder
from tests.tracking import offline

STEPS = 3
SMALL = (
    f"trainer.max_steps={STEPS}",
    "trainer.batch_size=2",
    "model.device=cpu",
    "data=file",
    "data.max_tokens=6",
    "serving.max_context_len=128",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model/``, ``rows.jsonl`` and a DVI_HOME ``home/``."""
    folder = tmp_path_factory.mktemp("train")
    make_model_folder(folder / "model")
    rows = [{"prompt": f"PROMPTMARK the dog sleeps {i}"} for i in range(12)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def done(place: Path) -> CompletedProcess[str]:
    """The finished command."""
    folders = ("CACHE", "CONFIG", "DATA")
    names = {f"WANDB_{name}_DIR": str(place / "home" / name) for name in folders}
    return run_dvi(
        "train", "model", "data.path=rows.jsonl", *SMALL, "tracking=wandb", "run.dir=mine",
        home=place / "home", cwd=place, env={**names, "WANDB_MODE": "offline"},
    )  # fmt: skip


def test_it_ends_with_a_published_candidate_that_is_not_promoted(
    done: CompletedProcess[str], place: Path
) -> None:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    names, values = (line.split() for line in done.stdout.splitlines())
    shown = dict(zip(names, values, strict=True))
    assert (shown["version"], shown["steps"], shown["dropped"]) == ("1", str(STEPS), "0")
    assert int(shown["train_rows"]) + int(shown["holdout_rows"]) == 12
    registry = Registry(place / "home" / "state" / "adapters")
    assert [one.version for one in registry.versions()] == [1]
    assert registry.current() == 0
    assert {path.name for path in place.iterdir()} == {"model", "rows.jsonl", "home", "mine"}


def test_wandb_has_its_config_its_curves_and_its_adapter(
    done: CompletedProcess[str], place: Path
) -> None:
    assert done.returncode == 0, done.stderr
    (folder,) = (place / "mine" / "wandb").glob("offline-run-*")
    said = offline.settings(folder)
    assert said["trainer"]["max_steps"] == STEPS
    assert said["data"]["path"].endswith("rows.jsonl")
    assert (said["job_type"], said["group"]) == ("train", group_id(place / "home" / "state"))
    rows = offline.rows(folder)
    curve = [row for row in rows if "train/loss" in row]
    assert [row["train/step"] for row in curve] == list(range(1, STEPS + 1))
    assert all(math.isfinite(row["train/loss"]) for row in curve)
    (last,) = (row for row in rows if "adapter/version" in row)
    assert last["adapter/version"] == 1
    assert 0 <= last["adapter/holdout_acceptance"] <= 1
    (artifact,) = offline.artifacts(folder)
    kind, name, aliases, files = artifact
    assert (kind, name) == ("model", "dvi-model-auto")
    assert aliases == {"candidate", "adapter-1", "latest"}  # the last is W&B's own
    version = place / "home" / "state" / "adapters" / "v000001"
    assert files == {path.name for path in version.iterdir()}
    assert "adapter_model.safetensors" in files


def test_no_content_is_in_the_run_of_wandb(done: CompletedProcess[str], place: Path) -> None:
    assert done.returncode == 0, done.stderr
    files = [path for path in (place / "mine").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert [path.name for path in files if b"PROMPTMARK" in path.read_bytes()] == []


def test_a_failing_job_of_a_sweep_leaves_its_traceback_and_the_others_finish(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DVI_HOME", str(place / "home"))
    monkeypatch.chdir(place)
    (place / "bad.jsonl").write_text(json.dumps({"nonsense": 1}))
    files = "data.path=bad.jsonl,rows.jsonl"
    status = run(["train", "model", files, *SMALL, "run.dir=sweep", "--multirun"])
    assert status == 1
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    results = [one for row in words for one in row if one in ("failed", "done")]
    assert results == ["failed", "done"]
    bad, good = sorted(path for path in (place / "sweep").iterdir() if path.name in ("0", "1"))
    assert "Traceback" in (bad / "log.txt").read_text()
    assert "nonsense" in (bad / "log.txt").read_text()
    assert [one.version for one in Registry(good / "adapters").versions()] == [1]
