"""Which rounds were beside a staging, and the part with a real trainer process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dvi.bench.bench import Bench, EngineShape
from dvi.bench.main import run_bench
from dvi.bench.staging import QUIET_ROUNDS, Watched, gaps_ms, section, stolen_ticks, watch
from dvi.bench.swaps import random_adapters
from dvi.config import DviConfig

# Rounds of 1, 2, 3, 4 and 5 s, one right after the other.
ROUNDS = [(0.0, 1.0), (1.0, 3.0), (3.0, 6.0), (6.0, 10.0), (10.0, 15.0)]


def _seconds(stagings: list[tuple[float, float]]) -> list[float]:
    beside, alone = gaps_ms(Watched(ROUNDS, stagings))
    assert sorted(beside + alone) == [1000.0, 2000.0, 3000.0, 4000.0, 5000.0]
    return [one / 1000 for one in beside]


def test_rounds_beside_a_staging_are_those_it_touches_and_the_one_that_exchanges() -> None:
    assert _seconds([(1.5, 2.5)]) == [2.0, 3.0]
    assert _seconds([(0.5, 3.5)]) == [1.0, 2.0, 3.0, 4.0]
    assert _seconds([(14.0, 14.5)]) == [5.0]
    assert _seconds([(0.2, 0.4), (10.5, 11.0)]) == [1.0, 2.0, 5.0]
    assert _seconds([]) == []


def test_rounds_in_which_the_host_took_a_core_are_left_out_and_counted() -> None:
    watched = Watched(ROUNDS, [(6.5, 9.5)], stolen={0, 4})
    assert gaps_ms(watched) == ([4000.0], [2000.0, 3000.0])
    assert section(watched, [0.25], num_steps=3).data["rounds_stolen"] == 2
    # Where none is left beside a staging, all say what they can.
    found = section(Watched(ROUNDS, [(6.5, 9.5)], stolen={3, 4}), [0.25], num_steps=3).data
    assert (found["rounds_stolen"], found["rounds_beside"]) == (0, 2)


def test_what_the_host_takes_is_read_where_the_system_tells(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    assert stolen_ticks(stat) == 0
    stat.write_text("cpu  1 2 3 4 5 6 7 42 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert stolen_ticks(stat) == 42
    stat.write_text("cpu  1 2 3 4\n")
    assert stolen_ticks(stat) == 0


def test_the_longest_round_beside_is_set_against_the_median_of_the_others() -> None:
    found = section(Watched(ROUNDS, [(6.5, 9.5)]), [0.25, 0.75], num_steps=3).data
    # Beside: 4 and 5 s; the others 1, 2 and 3.
    assert found["longest_over_median"] == pytest.approx(5 / 2)
    assert (found["rounds_beside"], found["rounds_alone"]) == (2, 3)
    assert found["staging_ms"] == 3000.0
    assert found["swap_pause"]["p99_ms"] == 0.75
    assert found["trainer_steps"] == 3


def test_every_version_staged_beside_decoding_is_taken_by_a_round(
    config: DviConfig, tmp_path: Path
) -> None:
    with (
        Bench(config, tmp_path) as bench,
        bench.engine(EngineShape("block", 1, adaptive=False)) as subject,
    ):
        found = watch(subject, random_adapters(subject, 2), lambda count: count >= 2)
        assert subject.engine.stats().swaps["swapped"] == len(subject.pauses.pauses_s) == 2
    assert len(found.stagings) == 2
    beside, alone = gaps_ms(found)
    assert len(beside) >= 2
    assert len(alone) >= QUIET_ROUNDS


@pytest.mark.slow
def test_gaps_and_pauses_are_measured_while_a_trainer_learns(
    config: DviConfig, tmp_path: Path
) -> None:
    config.bench.parts, config.bench.max_tokens = "staging", 32
    config.trainer.batch_size, config.bench.swaps = 2, 60  # seconds: the trainer tells its steps
    config.trainer.priority = "low"  # beside a busy test run the lowest one gets nothing
    assert run_bench(config, tmp_path, as_json=False) == 0
    found = json.loads((tmp_path / "bench.json").read_text())["staging"]
    assert found["stagings"] == config.bench.swaps
    assert found["trainer_steps"] > 0
    assert found["swap_pause"]["count"] == config.bench.swaps
    assert not (tmp_path / "staging").exists()
