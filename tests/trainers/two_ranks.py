"""A program for a launcher: the gradients and the report of one step, written by rank 0."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.trainers.world import DRAFTER, TRAINER, live_traces, tiny_config, tiny_target
from trainers.build import make_learner
from trainers.draft import make_draft
from trainers.ranks import ONE, Ranks, open_ranks
from trainers.reports import loss_values


def first_gradients(ranks: Ranks) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """In float64, so that the order of sums is not seen; 3 traces leave the ranks unequal work."""
    torch.set_num_threads(1)
    target = tiny_target(torch.float64)
    config = replace(tiny_config(Path(), batch_size=4), drafter=DRAFTER)
    learner = make_learner(config, target, make_draft(DRAFTER, target, 0), ranks)
    report = learner._accumulate(live_traces(target, 3), 0)
    grads = {name: param.grad for name, param in learner.optimizer.params.items()}
    assert TRAINER.batch_size == 4
    return {name: grad for name, grad in grads.items() if grad is not None}, loss_values(report)


def main(folder: Path) -> None:
    """Every rank computes; rank 0 writes."""
    config = tiny_config(folder)
    config.model.device = "cpu"
    ranks = open_ranks(config, os.environ)
    assert ranks is not ONE
    grads, report = first_gradients(ranks)
    everybody = ranks.gather([(ranks.rank, ranks.size)])
    if ranks.rank == 0:
        save_file(grads, folder / "grads.safetensors")
        text = json.dumps({"ranks": everybody, "report": report})
        (folder / "report.json").write_text(text, encoding="utf-8")


def run_rank(rank: int, port: int, folder: Path) -> None:
    """What a launcher does for one of two processes: the variables, then the program."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    main(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
