"""The order of a bench: warm up, interleaved repeats, medians, report.

Owns which ways are compared with which; knows no clock.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from dvi.bench.adapters import random_versions
from dvi.bench.measure import WAYS, AnswerSpeed, Way, answer_speed, step_ms, swap_pauses_ms
from dvi.bench.report import Json, print_report, write_report
from dvi.bench.stats import quantile, spread
from dvi.bench.subject import BATCH_SIZES, Subject, open_subject
from dvi.config import DviConfig
from dvi.config.home import bench_dir

log = logging.getLogger(__name__)

NUM_VERSIONS = 4  # random adapters that take turns; each holds a merged block
Cell = tuple[int, Way]


def _cells(subject: Subject, ways: Iterable[Way]) -> list[Cell]:
    can_draft = subject.config.drafter.kind != "none"
    used = [way for way in ways if can_draft or not way.speculation]
    return [(size, way) for size in BATCH_SIZES for way in used]


def _answers(subject: Subject) -> list[tuple[Cell, list[AnswerSpeed]]]:
    """Greedy whole answers, the ways in turn in every repeat so that drift hits all alike."""
    cells = _cells(subject, [way for way in WAYS if way.temperature == 0])
    found: dict[Cell, list[AnswerSpeed]] = {cell: [] for cell in cells}
    for repeat in range(subject.config.bench.repeats):
        log.info("whole answers, repeat %d of %d", repeat + 1, subject.config.bench.repeats)
        for size, way in cells:
            found[size, way].append(answer_speed(subject, way, size))
    return list(found.items())


def _steps(subject: Subject) -> dict[Cell, list[float]]:
    cells = _cells(subject, WAYS)
    found: dict[Cell, list[float]] = {cell: [] for cell in cells}
    for repeat in range(subject.config.bench.repeats):
        log.info("single steps, repeat %d of %d", repeat + 1, subject.config.bench.repeats)
        for size, way in cells:
            found[size, way].append(step_ms(subject, way, size))
    return found


def _answer_rows(found: list[tuple[Cell, list[AnswerSpeed]]]) -> list[Json]:
    medians = {
        cell: statistics.median(one.tokens_per_s for one in values) for cell, values in found
    }
    plain = {size: value for (size, way), value in medians.items() if not way.speculation}
    return [
        {
            "batch_size": size,
            "way": way.name,
            "tokens_per_s": dataclasses.asdict(spread([one.tokens_per_s for one in values])),
            "over_plain": medians[size, way] / plain[size],
            "acceptance_rate": values[0].acceptance_rate,
            "tokens_per_round": values[0].tokens_per_round,
        }
        for (size, way), values in found
    ]


def _step_rows(found: dict[Cell, list[float]]) -> list[Json]:
    """Each way against the greedy one of the same kind: ratio of medians."""
    greedy = {
        (size, way.speculation): statistics.median(values)
        for (size, way), values in found.items()
        if way.temperature == 0
    }
    return [
        {
            "batch_size": size,
            "way": way.name,
            "ms": dataclasses.asdict(spread(values)),
            "over_greedy": statistics.median(values) / greedy[size, way.speculation],
        }
        for (size, way), values in found.items()
    ]


def _swap_row(subject: Subject) -> Json | None:
    versions = random_versions(subject, NUM_VERSIONS)
    if not versions:
        return None
    log.info("%d swaps of random adapters", subject.config.bench.swaps)
    pauses = swap_pauses_ms(subject, versions)
    return {
        "count": len(pauses),
        "median_ms": statistics.median(pauses),
        "p99_ms": quantile(pauses, 0.99),
        "max_ms": max(pauses),
    }


def _measure(subject: Subject) -> dict[str, Any]:
    log.info("warming up")
    for size, way in _cells(subject, WAYS[:3]):
        step_ms(subject, way, size)
    answers = _answers(subject)
    shares = [one.log_share for _, values in answers for one in values]
    return {
        "answers": _answer_rows(answers),
        "steps": _step_rows(_steps(subject)),
        "log_share": dataclasses.asdict(spread(shares)),
        # Last: random adapters replace the draft that was measured.
        "swaps": _swap_row(subject),
    }


def run_bench(config: DviConfig, run_dir: Path, *, as_json: bool) -> int:
    """Run it all and return 0. Raises ValueError with one line for what cannot be measured."""
    torch.set_num_threads(config.model.num_threads or os.cpu_count() or 1)
    torch.set_flush_denormal(True)
    start_s = time.monotonic()
    with open_subject(config, run_dir) as subject:
        measured = _measure(subject)
        fingerprint = subject.opened.system_fingerprint
    for path in run_dir.glob("replay.sqlite*"):
        path.unlink()
    report = {
        "model": config.model.path,
        "drafter": config.drafter.kind,
        "adapters": config.bench.adapters,
        "draft_len": config.decoding.draft_len,
        "deterministic": config.decoding.deterministic,
        "num_threads": torch.get_num_threads(),
        "num_prompts": config.bench.num_prompts,
        "max_tokens": config.bench.max_tokens,
        "system_fingerprint": fingerprint,
        "seconds": round(time.monotonic() - start_s, 1),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **measured,
    }
    write_report(report, run_dir)
    write_report(report, bench_dir())
    if as_json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print_report(report)
        print(f"{bench_dir() / 'bench.json'}, {bench_dir() / 'bench.png'}")
    return 0
