"""The whole demo on a small random model: processes, HTTP, comparison, report."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
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
        timeout_s=1000.0,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["identity"]["greedy"]["compared"] == 30
    assert report["identity"]["greedy"]["identical"] == 30
    assert report["identity"]["sampled"]["identical"] == 3
    # A token of this model is a letter: the functions do not fit, and nothing else is lost by it.
    assert report["tools"] is None
    assert re.search(r"no tool calls: request \d+: HTTP 400", done.stderr)
    assert report["mode"] == "deterministic"
    total = report["total"]
    assert total["tokens"] == total["rounds"] + total["accepted"]
    assert json.loads((home / "demo" / "report.json").read_text()) == report
    assert (home / "demo" / "report.html").stat().st_size > 1000
    assert not (home / "state").exists()
    assert list((home / "runs" / "demo").glob("*/*/state")) == []


@pytest.mark.slow
def test_a_killed_demo_leaves_no_server_behind(tmp_path: Path) -> None:
    if sys.platform != "linux":
        return  # only there does the kernel end a child with its parent
    model, home = tmp_path / "model", tmp_path / "home"
    make_model_folder(model)
    demo = subprocess.Popen(
        [sys.executable, "-m", "dvi", "demo", f"model.path={model}"],
        env={**os.environ, "DVI_HOME": str(home)},
        stderr=subprocess.DEVNULL,
    )
    server = _wait_for_child(demo.pid)
    demo.kill()
    demo.wait()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not Path(f"/proc/{server}").exists()


def _wait_for_child(parent: int) -> int:
    """The process id of the demo's server, once it has become `dvi serve`."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for task in Path(f"/proc/{parent}/task").iterdir():
            for child in (task / "children").read_text().split():
                words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
                if "serve" in words and "dvi" in words:
                    return int(child)
        time.sleep(0.2)
    raise AssertionError("the demo started no server")
