from __future__ import annotations

import fcntl
import json
import multiprocessing
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from dvi.config import TrackingConfig
from dvi.tracking import MetricRow, make_tracker
from dvi.tracking.jsonl import JsonlSink, to_line

CONTEXT = multiprocessing.get_context("fork")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def row(step: int, **values: float) -> MetricRow:
    return MetricRow(1.0, "train", {"train/step": step, **values})


def test_rows_are_appended_with_time_family_and_full_names(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with make_tracker(TrackingConfig(), state, "serve", {}) as tracker:
        tracker.log("serve", {"tokens": 5, "drift/alpha_fast": 0.5, "model": "m"})
        tracker.log("train", {"loss": float("nan"), "step": 1})
    first, second = rows_of(state / "metrics.jsonl")
    assert first.pop("time_s") > 1.7e9
    assert first == {
        "family": "serve",
        "serve/tokens": 5,
        "drift/alpha_fast": 0.5,
        "serve/model": "m",
    }
    assert second["train/loss"] is None  # strict JSON knows no NaN
    assert tracker.gauges() == {"tracking_rows_dropped": 0.0}
    assert (state / "metrics.jsonl").stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700


def test_none_writes_nothing(tmp_path: Path) -> None:
    with make_tracker(TrackingConfig(kind="none"), tmp_path, "serve", {}) as tracker:
        tracker.log("serve", {"tokens": 5})
        tracker.artifact(1, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_rotated_by_size_and_one_older_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    size = len(to_line(row(10)))
    sink = JsonlSink(path, max_bytes=4 * size)
    for step in range(10, 20):
        sink.write(row(step))
        assert path.stat().st_size <= 4 * size
    older = rows_of(tmp_path / "metrics.jsonl.1")
    assert [one["train/step"] for one in older + rows_of(path)] == list(range(14, 20))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_row_larger_than_the_bound_is_written_alone(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", max_bytes=10)
    for step in range(3):
        sink.write(row(step))
    assert [one["train/step"] for one in rows_of(tmp_path / "metrics.jsonl")] == [2]


def test_half_a_line_of_a_killed_process_costs_no_other_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"time_s":1,"fam')
    JsonlSink(path, max_bytes=1 << 16).write(row(1))
    lines = path.read_text().splitlines()
    assert len(lines) == 2
    assert json.loads(lines[1])["train/step"] == 1


def _write_many(path: Path, start: int) -> None:
    sink = JsonlSink(path, max_bytes=12_000)
    for step in range(start, start + 200):
        sink.write(row(step))


def test_two_processes_share_the_file_across_rotations(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    # 400 rows of 50 bytes are 20 KB: one rotation at 12 KB, so none is rotated away.
    processes = [CONTEXT.Process(target=_write_many, args=(path, s)) for s in (1000, 2000)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    rows = rows_of(tmp_path / "metrics.jsonl.1") + rows_of(path)
    for start in (1000, 2000):
        steps = [one["train/step"] for one in rows if one["train/step"] // 1000 == start // 1000]
        assert steps == list(range(start, start + 200))


def test_a_row_waits_for_the_line_of_another_process(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writing = threading.Thread(target=JsonlSink(path, max_bytes=1 << 16).write, args=(row(1),))
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writing.start()
        writing.join(0.2)
        assert writing.is_alive()
        assert path.stat().st_size == 0
    writing.join(5)
    assert len(rows_of(path)) == 1


def test_a_row_goes_to_the_new_file_when_another_process_rotates_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path, max_bytes=1 << 16)
    sink.write(row(1))
    real_flock = fcntl.flock

    def rotate_first(descriptor: int, kind: int) -> None:
        monkeypatch.setattr("dvi.tracking.jsonl.fcntl.flock", real_flock)
        path.rename(tmp_path / "metrics.jsonl.1")
        real_flock(descriptor, kind)

    monkeypatch.setattr("dvi.tracking.jsonl.fcntl.flock", rotate_first)
    sink.write(row(2))
    assert [one["train/step"] for one in rows_of(path)] == [2]
    assert [one["train/step"] for one in rows_of(tmp_path / "metrics.jsonl.1")] == [1]


@pytest.mark.parametrize("kind", ["jsonl", "none"])
def test_wandb_is_not_imported_unless_asked_for(tmp_path: Path, kind: str) -> None:
    program = (
        "import sys, pathlib; from dvi.config import TrackingConfig\n"
        "from dvi.tracking import make_tracker\n"
        f"make_tracker(TrackingConfig(kind={kind!r}), pathlib.Path(sys.argv[1]), 'serve', {{}})\n"
        "assert 'wandb' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
    assert done.returncode == 0
