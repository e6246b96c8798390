"""status.json: whole, and never falling over restarts."""

from __future__ import annotations

import json
from pathlib import Path

from trainers.status import StatusFile, read_status


def test_counters_never_fall_when_a_restart_goes_back_to_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "trainer" / "status.json"
    first = StatusFile(path)
    first.open()
    first.write({"steps": 7, "gate": {"promoted": 2, "held": 1}, "loss": 3.0}, process_cpu_s=5.0)
    second = StatusFile(path)
    second.open()
    second.write({"steps": 5, "gate": {"promoted": 1, "held": 1}, "loss": 2.0}, process_cpu_s=0.5)
    told = read_status(path)
    assert told["steps"] == 7
    assert told["gate"] == {"promoted": 2, "held": 1, "refused": 0, "rolled_back": 0}
    assert told["cpu_seconds"] == 5.5
    assert told["loss"] == 2.0
    second.write({"steps": 9, "gate": {"promoted": 3}}, process_cpu_s=0.75)
    told = read_status(path)
    assert (told["steps"], told["gate"]["promoted"], told["cpu_seconds"]) == (9, 3, 5.75)
    assert [p.name for p in path.parent.iterdir()] == ["status.json"]


def test_a_damaged_or_missing_file_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    for text in ("", "{", "[1]", json.dumps({"steps": "many", "gate": 3})):
        path.write_text(text)
        status = StatusFile(path)
        status.open()
        status.write({"steps": 1}, process_cpu_s=0.0)
        assert read_status(path)["steps"] == 1
    assert read_status(tmp_path / "none.json") == {}
