"""The part `prefix`: prompts that share exactly what they should, and equal answers."""

from __future__ import annotations

from pathlib import Path

from dvi.bench.bench import Bench
from dvi.bench.prefix import NUM_REQUESTS, PREFIX_LEN, measure, prompts_with_prefix
from dvi.config import DviConfig


def test_prompts_share_the_prefix_and_turns_share_none() -> None:
    pool = [tuple(range(100 * n, 100 * n + 60)) for n in range(20)]
    prompts = prompts_with_prefix(pool, 1)
    assert len(set(prompts)) == NUM_REQUESTS
    assert len({prompt[:PREFIX_LEN] for prompt in prompts}) == 1
    assert prompts_with_prefix(pool, 2)[0][0] != prompts[0][0]


def test_answers_after_a_shared_prefix_are_those_of_whole_prompts(
    config: DviConfig, tmp_path: Path
) -> None:
    config.drafter.kind = "block"
    config.decoding.deterministic = True
    config.serving.max_context_len = 1024
    config.bench.repeats, config.bench.max_tokens = 1, 3
    with Bench(config, tmp_path) as bench:
        section = measure(bench)
    assert section.failure is None
    assert section.data["equal_answers"] == NUM_REQUESTS
    assert section.data["alpha"] == section.data["alpha_whole_prompts"]
    assert 0 < section.data["later_over_first"] < 1
