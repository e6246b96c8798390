"""A program: optimizer steps on batches no two of which are alike, in bfloat16.

Prints by how many bytes the process grew after its first steps. ``autocast``: bfloat16 in the
trained forward only; ``model``: the frozen weights have it too.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path

from dvi.config.child import keep_few_kernels

keep_few_kernels(os.environ)

import torch  # noqa: E402

from dvi.types import Trace  # noqa: E402
from tests.trainers.world import (  # noqa: E402
    VOCAB,
    greedy,
    make_trace,
    prompt_of,
    tiny_config,
    tiny_target,
)
from trainers.build import make_learner  # noqa: E402
from trainers.draft import make_draft  # noqa: E402
from trainers.ranks import ONE, open_ranks  # noqa: E402

FIRST_STEPS = 10  # what every process loads once


def resident_bytes() -> int:
    """Of this process, from Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def ragged_trace(rng: random.Random, number: int) -> Trace:
    """Of any length."""
    length = rng.randrange(4, 90)
    output = [rng.randrange(VOCAB) for _ in range(length)]
    texts = (prompt_of(number, rng.randrange(2, 60)), output)
    return make_trace(f"{number}", texts, greedy(length), torch.randn(length, VOCAB), ())


def main(precision: str, num_steps: int) -> None:
    """Take the steps."""
    torch.set_num_threads(1)
    is_autocast = precision == "autocast"
    config = tiny_config(Path(), mixed_precision="bf16" if is_autocast else "no")
    config = replace(config, model=replace(config.model, device="cpu"))
    target = tiny_target(torch.float32 if is_autocast else torch.bfloat16)
    ranks = open_ranks(config, {}) if is_autocast else ONE
    learner = make_learner(config, target, make_draft(config.drafter, target, 0), ranks)
    rng = random.Random(0)
    before = 0
    for step in range(num_steps):
        if step == FIRST_STEPS:
            before = resident_bytes()
        learner.train_step([ragged_trace(rng, 4 * step + i) for i in range(4)], 0)
    print(resident_bytes() - before)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
