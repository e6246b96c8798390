from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dvi.tracking.wandb_names import artifact_name, group_id, kept_id, mask

PROGRAM = """
import json, sys, time
from pathlib import Path
from dvi.config import TrackingConfig
from dvi.tracking import make_tracker

state = Path(sys.argv[1])
folder = state / "v000012"
folder.mkdir(parents=True, exist_ok=True)
(folder / "adapter_model.safetensors").write_bytes(b"weights" * 10)
config = {"model": {"path": "hub/smol model"}, "drafter": {"kind": "block"},
          "serving": {"api_key": "KEYMARK"}, "replay": {"url": "postgresql://u:PASSMARK@db/x"}}
tracker = make_tracker(TrackingConfig(kind="wandb"), state, "serve", config)
for i in range(5):
    tracker.log("serve", {"tokens": i, "drift/alpha_fast": 0.25})
tracker.artifact(12, folder)
tracker.alert("ALERTMARK", "acceptance 0.5 -> 0.2")
deadline = time.monotonic() + 10
while not list(state.glob("wandb/*run-*/*.wandb")) and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.5)  # the run is there; now it would hear the console
print("CONSOLEMARK")
tracker.close()
print(json.dumps(dict(tracker.gauges())))
"""


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
del sys.argv[1]
exec(sys.argv.pop(1))
"""
MARKS = ("ARGVMARK", "replay.x=ARGVMARK")


def run_program(
    tmp_path: Path, file_bytes: int = resource.RLIM_INFINITY, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The program above in a process of its own: W&B keeps state for the life of a process.

    No file of it or its children can grow beyond ``file_bytes``, as on a full disk.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    clean |= {"HOME": str(tmp_path / "home"), "PYTHONPATH": os.getcwd(), **environment}
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        clean.setdefault(name, str(tmp_path / "home" / name))
    (tmp_path / "home").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", LIMITED, str(file_bytes), PROGRAM, str(tmp_path / "state"), *MARKS],
        env=clean,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_without_a_login_a_run_is_offline_and_holds_only_our_numbers(tmp_path: Path) -> None:
    done = run_program(tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"tracking_rows_dropped": 0.0}
    assert "Traceback" not in done.stderr
    (run_folder,) = (tmp_path / "state" / "wandb").glob("offline-run-*")
    (log_file,) = run_folder.glob("*.wandb")
    log = log_file.read_bytes()
    group = group_id(tmp_path / "state").encode()
    for wanted in (
        b"serve/tokens",
        b"serve/*",
        b"train/step",
        b"adapter/version",
        b"drift/alpha_fast",
        b"dvi-smol-model-block",
        b"adapter-12",
        b"live",
        b"ALERTMARK",
        group,
    ):
        assert wanted in log
    everything = b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    for unwanted in (b"ARGVMARK", b"CONSOLEMARK", b"KEYMARK", b"PASSMARK"):
        assert unwanted not in everything
    assert not (tmp_path / "wandb").exists()
    for name in ("requirements.txt", "wandb-metadata.json", "output.log", "diff.patch"):
        assert list(run_folder.rglob(name)) == []
    assert len((tmp_path / "state" / "metrics.jsonl").read_text().splitlines()) == 5


@pytest.mark.slow
def test_a_full_disk_costs_rows_and_bounded_time_and_nothing_else(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run_program(tmp_path, file_bytes=512)  # less than the head of a run of W&B
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 45  # as below
    assert "Traceback" not in done.stderr
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert max(path.stat().st_size for path in files) <= 512
    assert json.loads(done.stdout.splitlines()[-1]).keys() == {"tracking_rows_dropped"}


@pytest.mark.slow
def test_a_server_that_never_answers_costs_bounded_time_and_no_row_of_the_file(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hole:  # accepts, never answers
        began = time.monotonic()
        done = run_program(
            tmp_path,
            WANDB_API_KEY="0123456789" * 4,
            WANDB_BASE_URL=f"http://127.0.0.1:{hole.getsockname()[1]}",
        )
        took_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    # close gives up after 8 s; the interpreter's exit waits for W&B at most as long again.
    assert took_s < 45
    assert len((tmp_path / "state" / "metrics.jsonl").read_text().splitlines()) == 5


def test_the_group_is_the_id_of_the_state_folder(tmp_path: Path) -> None:
    made = group_id(tmp_path)
    assert made.startswith("dvi-")
    assert group_id(tmp_path) == made
    (tmp_path / "state.json").write_text('{"format": 1, "id": "abc"}')
    assert group_id(tmp_path) == "dvi-abc"


def test_a_kept_id_survives_and_damage_makes_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "wandb" / "run-id-serve"
    first = kept_id(path)
    assert kept_id(path) == first
    path.write_text("torn")
    assert kept_id(path) != first
    assert kept_id(path) == kept_id(path)


def test_an_artifact_is_named_after_model_and_drafter() -> None:
    config = {"model": {"path": "/models/Qwen3 0.6B/"}, "drafter": {"kind": "block"}}
    assert artifact_name(config) == "dvi-Qwen3-0.6B-block"
    assert artifact_name({}) == "dvi-unknown-unknown"


def test_secrets_are_masked_at_any_depth() -> None:
    config = {
        "serving": {"api_key": "k", "port": 1, "admin_key": "a", "keys": [{"password": "p"}]},
        "replay": {"url": "postgresql+psycopg://me:pw@host:5432/db", "max_bytes": 5},
        "model": {"path": "https://host/x"},
    }
    assert mask(config) == {
        "serving": {"api_key": "***", "port": 1, "admin_key": "***", "keys": [{"password": "***"}]},
        "replay": {"url": "postgresql+psycopg://***@host:5432/db", "max_bytes": 5},
        "model": {"path": "https://host/x"},
    }
