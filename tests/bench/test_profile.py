"""The profile of a pass: its arithmetic, and the command on a small model."""

from __future__ import annotations

from pathlib import Path

import pytest

from dvi.bench.profile import CELLS, PassTimes, bandwidth, main, profile_passes, table
from tests.rigs import build_target, make_model_folder


def test_what_no_part_explains_is_the_rest() -> None:
    times = PassTimes(1, 5, whole_ms=48.0, plan_ms=0.5, matrices_ms=31.5, head_ms=6.0)
    assert times.rest_ms == 10.0
    (_, line) = table([times], limit_ms=24.0)
    assert line.split() == ["1", "5", "48.0", "2.00", "31.5", "6.0", "0.50", "10.0"]


def test_bandwidth_is_bytes_over_the_shortest_read() -> None:
    ticks = iter([0, 4, 10, 12, 20, 23, 30, 34, 40, 45])  # five reads; the second takes 2 s
    assert bandwidth(lambda: next(ticks), num_bytes=4000) == 2000.0


def test_every_cell_is_timed_and_a_slow_turn_does_not_count() -> None:
    target = build_target()
    calls = iter(range(10_000))
    now_s = 0.0

    def clock() -> float:
        # Each job takes a second, but ten seconds in the fourth turn. A turn has 8 jobs; the
        # warm-up is one.
        nonlocal now_s
        call = next(calls)
        now_s += 10.0 if call // 16 == 4 else 1.0
        return now_s

    found = profile_passes(target, [(1, 1), (3, 2)], 5, clock)
    assert [(one.batch, one.width) for one in found] == [(1, 1), (3, 2)]
    for one in found:
        parts = (one.whole_ms, one.plan_ms, one.matrices_ms, one.head_ms)
        assert parts == (1000.0,) * 4


@pytest.mark.parametrize("overrides", [[], ["model.quantization=int8"]])
def test_the_command_prints_limit_and_table(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    overrides: list[str],
) -> None:
    make_model_folder(tmp_path, layers=3)
    arguments = [f"model.path={tmp_path}", "serving.max_context_len=512", *overrides]
    assert main([*arguments, "model.num_threads=1"]) == 0
    first, _, *rows = capsys.readouterr().out.splitlines()
    assert "MB of weights at" in first
    assert [tuple(map(int, row.split()[:2])) for row in rows] == list(CELLS)


def test_what_cannot_be_loaded_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model.quantization=int3"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
