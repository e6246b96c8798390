"""Faults under load, one after the other: only a killed server's own requests fail.

``bash scripts/soak.sh --minutes 30`` runs it for as long; DVI_SOAK_MINUTES and DVI_SOAK_EVERY_S
do the same here.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dvi.audit.main import run_audit
from dvi.config import DviConfig
from dvi.registry import Act, Registry
from dvi.replay.store import FILE_SHARE
from tests.rigs import make_model_folder
from tests.serving.live import wait_for
from tests.serving.test_process import learning_config
from tests.soak.drifting import Crowd
from tests.soak.faults import FAULTS
from tests.soak.plant import Plant
from tests.soak.test_soak import check_flat_memory, metrics_of
from tests.soak.traffic import resident_bytes

MINUTES = float(os.environ.get("DVI_SOAK_MINUTES", "3"))
EVERY_S = float(os.environ.get("DVI_SOAK_EVERY_S", "12" if MINUTES < 10 else "60"))
MAX_BYTES = 4 << 20  # reached within a minute or two
AUDITED = 256
SAMPLE_S = 1.0
# Memory settles in a server's first minutes: 3% of growth says something of a longer life only.
LONG_LIFE_SAMPLES = 480
PROBE = {"prompt": "SELECT name FROM orders", "max_tokens": 24, "seed": 3, "ignore_eos": True}


@dataclass
class Samples:
    """Sizes over time."""

    resident: dict[int, list[int]] = field(default_factory=dict)  # by server process
    largest_store: int = 0


def soak_config(folder: Path) -> DviConfig:
    make_model_folder(folder / "tiny")
    config = learning_config(folder / "tiny", folder / "state")
    trainer = replace(config.trainer, publish_steps=4, min_holdout_traces=2)
    audit = replace(config.audit, max_traces=AUDITED, mode="exact")
    replay = replace(config.replay, max_bytes=MAX_BYTES)
    return replace(config, trainer=trainer, replay=replay, audit=audit)


def sample(plant: Plant, samples: Samples, stop: threading.Event) -> None:
    while not stop.wait(SAMPLE_S):
        try:
            pid = plant.pid
            if size := resident_bytes(pid):  # 0 just after a kill
                samples.resident.setdefault(pid, []).append(size)
        except (OSError, IndexError):
            continue  # just killed
        sizes = [path.stat().st_size for path in store_files(plant) if path.exists()]
        samples.largest_store = max(samples.largest_store, sum(sizes))


def store_files(plant: Plant) -> list[Path]:
    return [plant.state / "replay.sqlite", plant.state / "replay.sqlite-wal"]


def probe(plant: Plant) -> Any:
    return httpx.post(f"{plant.url}/v1/completions", json=PROBE, timeout=60).json()["choices"]


def make_faults(plant: Plant, expected: Any) -> None:
    """One every EVERY_S until the time is over; a question has the same answer after each."""
    start_s = time.monotonic()
    end_s = start_s + 60 * MINUTES
    number = 0
    while time.monotonic() + EVERY_S < end_s:
        time.sleep(max(0.0, start_s + (number + 1) * EVERY_S - time.monotonic()))
        fault = FAULTS[number % len(FAULTS)]
        print(f"{time.monotonic() - start_s:6.0f} s  {fault.__name__}", flush=True)
        fault(plant)
        assert probe(plant) == expected, fault.__name__
        assert plant.is_ready(), fault.__name__
        number += 1
    time.sleep(max(0.0, end_s - time.monotonic()))


def check_learning_goes_on(plant: Plant) -> None:
    """The trainer makes steps and the store takes traces after all that."""

    def numbers() -> tuple[float, float]:
        metrics = metrics_of(plant.url)
        return metrics["dvi_trainer_steps_total"], metrics["dvi_traces_written_total"]

    steps, written = numbers()
    assert wait_for(lambda: numbers()[0] > steps and numbers()[1] > written, 120)


def check_registry(plant: Plant) -> None:
    """Every number was given out once, and what is in service is whole."""
    registry = Registry(plant.state / "adapters")
    published = [event.version for event in registry.history() if event.act is Act.PUBLISH]
    assert published == sorted(set(published))
    if (current := registry.current()) and current not in registry.damaged():
        registry.read(current)


@pytest.mark.slow
@pytest.mark.timeout(int(60 * MINUTES) + 900)
def test_faults_under_load_fail_no_request_but_a_killed_servers(tmp_path: Path) -> None:
    config = soak_config(tmp_path)
    plant, samples, stop = Plant(config, tmp_path / "run"), Samples(), threading.Event()
    sampler = threading.Thread(target=sample, args=(plant, samples, stop), daemon=True)
    try:
        plant.start()
        expected = probe(plant)
        sampler.start()
        with Crowd(plant.url, plant.was_down) as crowd:
            make_faults(plant, expected)
            check_learning_goes_on(plant)
        stop.set()
        sampler.join(10)
        swaps = metrics_of(plant.url)["dvi_adapter_swaps_total{swapped}"]
        assert plant.stop() == 0
    finally:
        stop.set()
        plant.end()
    outcome, lives = crowd.outcome, samples.resident
    print(f"{outcome.num_answers} answers, {outcome.num_cut} cut, {swaps:.0f} swaps, store at most")
    print(f"{samples.largest_store / 2**20:.1f} MiB, resident at the end of each server's life:")
    print([f"{life[-1] / 2**20:.0f} MiB" for life in lives.values()])
    assert not outcome.failures, (len(outcome.failures), outcome.failures[:5])
    assert outcome.num_answers > 60 * MINUTES
    assert samples.largest_store <= FILE_SHARE * MAX_BYTES
    check_registry(plant)
    for life in lives.values():
        if len(life) >= LONG_LIFE_SAMPLES:
            check_flat_memory(life)
    assert run_audit(config, tmp_path, as_json=False) == 0
