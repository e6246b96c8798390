"""Several processes are one training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainers.processes import CONTEXT, DEADLINE_S
from tests.trainers.two_ranks import first_gradients, run_rank
from trainers.ranks import ONE


def by_fork(folder: Path) -> None:
    """Two processes with the variables that a launcher gives them, everything imported already."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    processes = [CONTEXT.Process(target=run_rank, args=(rank, port, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(DEADLINE_S)
    assert [process.exitcode for process in processes] == [0, 0]


def by_torchrun(folder: Path) -> None:
    """The launcher itself: each of three processes imports everything."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launcher, "--standalone", "-m", "tests.trainers.two_ranks", str(folder)],
        env={**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("launch", [by_fork, pytest.param(by_torchrun, marks=pytest.mark.slow)])
def test_two_processes_compute_the_gradients_of_one(
    launch: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path))  # processes of other tests may come from here
    launch(tmp_path)
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["ranks"] == [[0, 2], [1, 2]]
    expected, report = first_gradients(ONE)
    grads = load_file(tmp_path / "grads.safetensors")
    assert grads.keys() == expected.keys()
    assert max(float(grad.abs().max()) for grad in expected.values()) > 1e-3
    for name, grad in expected.items():
        torch.testing.assert_close(grads[name], grad, atol=1e-12, rtol=1e-9)
    exact = ("loss", "kl", "ce", "entropy", "agreement")  # reward terms weigh parts by positions
    assert [told["report"][name] for name in exact] == pytest.approx(
        [report[name] for name in exact], rel=1e-9
    )


def test_one_process_changes_nothing() -> None:
    param = torch.nn.Parameter(torch.ones(2))
    param.grad = torch.tensor([1.0, 2.0])
    grad = param.grad
    ONE.sum_gradients([param])
    assert param.grad is grad
    assert ONE.shares([1, 2, 3]) == [[1, 2, 3]]
    assert ONE.gather(["a"]) == ["a"]
