"""The whole demo on a small random model: processes, HTTP, comparison, report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.program import run_dvi
from tests.rigs import make_model_folder


@pytest.mark.slow
def test_a_demo_ends_with_every_answer_identical_and_a_report(tmp_path: Path) -> None:
    model, home = tmp_path / "model", tmp_path / "home"
    make_model_folder(model)
    done = run_dvi(
        "demo",
        f"model.path={model}",
        "demo.prompts_per_domain=10",
        "demo.sampled_prompts=3",
        "demo.max_tokens=12",
        "demo.control=true",
        "trainer.batch_size=2",
        "--json",
        home=home,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["identity"]["greedy"]["compared"] == 30
    assert report["identity"]["greedy"]["identical"] == 30
    assert report["identity"]["sampled"]["identical"] == 3
    assert report["mode"] == "deterministic"
    total = report["total"]
    assert total["tokens"] == total["rounds"] + total["accepted"]
    assert json.loads((home / "demo" / "report.json").read_text()) == report
    assert (home / "demo" / "report.html").stat().st_size > 1000
    assert not (home / "state").exists()
    assert list((home / "runs" / "demo").glob("*/*/state")) == []
