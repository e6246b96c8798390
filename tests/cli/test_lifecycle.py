"""From served traffic to a promoted version, by commands alone, on a small random model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvi.demo.client import Pass, run_pass
from dvi.demo.server import Server
from dvi.traffic.stream import make_stream
from tests.cli.program import run_dvi
from tests.rigs import make_model_folder


def _serve_some(model: Path, folder: Path) -> int:
    """Number of requests that were answered and logged."""
    stream = make_stream(2, 0)
    how = Pass(speculation=True, log=True, in_flight=2, max_tokens=12)
    with Server([f"model.path={model}", "trainer.enabled=false"], folder) as server:
        run_pass(server.url, stream, how, lambda _: None)
    return len(stream)


@pytest.mark.slow
def test_stored_traffic_trains_a_candidate_that_is_promoted_and_rolled_back_by_hand(
    tmp_path: Path,
) -> None:
    model, home = tmp_path / "model", tmp_path / "home"
    make_model_folder(model)
    num_served = _serve_some(model, tmp_path / "server")
    state = f"state_dir={tmp_path / 'server' / 'state'}"

    def dvi(*words: str) -> str:
        done = run_dvi(*words, state, home=home)
        assert done.returncode == 0, done.stderr
        return done.stdout

    stats = json.loads(dvi("replay", "stats", "--json"))
    assert stats["rows"] == num_served
    steps = ("trainer.max_steps=3", "trainer.batch_size=2")
    table = dvi("train", f"model.path={model}", *steps).splitlines()
    assert table[1].split()[:2] == ["1", "3"]  # version, steps
    listed = json.loads(dvi("adapters", "list", "--json"))
    assert (listed["current"], len(listed["versions"])) == (0, 1)
    assert json.loads(dvi("adapters", "promote", "1", "--json"))["current"] == 1
    assert "checkpoint_step" in dvi("adapters", "show", "1")
    assert "in service: version 0" in dvi("adapters", "rollback")
    dvi("train", f"model.path={model}", *steps, "run.seed=1,2", "--multirun")
    listed = json.loads(dvi("adapters", "list", "--json"))
    assert len(listed["versions"]) == 1  # jobs of a sweep publish in their own folders
