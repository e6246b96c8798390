"""A long mixed load: nothing fails, every token is accounted for, memory and alpha stay flat."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import save_file

from dvi.config import DecodingConfig, DviConfig
from dvi.decoding.startup import open_engine
from dvi.drafting import draft_branch
from dvi.registry import ManifestFields, Registry
from tests.drafting.rows import random_tensors
from tests.rigs import make_model_folder
from tests.serving.live import live_server, tiny_config, wait_for
from tests.serving.processes import server_process
from tests.soak.traffic import LEAVER_TOKENS, Draft, Mix, Tally, resident_bytes, run_mix

NUM_REQUESTS = int(os.environ.get("DVI_SOAK_REQUESTS", "20000"))
NUM_PLAIN_REQUESTS = 4000
# A stationary stream exceeds 4.5 standard errors in one of four quarters once in 37,000 runs.
MAX_STANDARD_ERRORS = 4.5
MAX_GROWTH = 0.03  # of resident memory, last quarter over the second


def soak_config(folder: Path) -> DviConfig:
    """A tiny server whose registry has versions 1 and 2 with the same weights."""
    make_model_folder(folder / "tiny")
    config = tiny_config(folder / "tiny", folder / "state")
    # All of them at once: short drafts in wide rounds make the most requests a second.
    config.decoding = DecodingConfig(adaptive=False, draft_len=2)
    config.serving.max_batch_size = Mix(0).concurrency
    opened = open_engine(config)
    layout = draft_branch(config.drafter, opened.engine.parts.target).layout
    tensors = random_tensors(layout, 1, 0.1)
    registry = Registry(folder / "state" / "adapters")

    def write(into: Path) -> None:
        save_file(tensors, into / "adapter_model.safetensors")
        settings = {"alpha_pattern": layout.alphas()}
        (into / "adapter_config.json").write_text(json.dumps(settings))

    for _ in range(2):
        fields = ManifestFields(opened.base_fingerprint, layout.drafter)
        version = registry.publish(write, fields)
    assert version == 2
    registry.promote(1, "test")
    return config


def metrics_of(url: str) -> dict[str, float]:
    """Samples by ``name`` or ``name{label value}``."""
    text = httpx.get(f"{url}/metrics", timeout=30).text
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def check_identities(url: str, mix: Mix, tally: Tally) -> None:
    """No error of ours, and generated, delivered and counted tokens agree to the token."""
    assert not tally.errors, tally.errors[:5]

    def is_idle() -> bool:
        now = metrics_of(url)
        return now["dvi_running_requests"] == now["dvi_queue_depth"] == 0

    assert wait_for(is_idle)
    metrics = metrics_of(url)
    by_outcome = {
        name: int(metrics[f"dvi_requests_total{{{name}}}"])
        for name in ("stop", "length", "cancelled", "rejected", "failed")
    }
    assert tally.num_answers + tally.num_left + tally.num_refused == mix.num_requests
    assert by_outcome["failed"] == by_outcome["stop"] == 0  # end tokens are ignored
    # Some clients left when the last byte of their answer had been written already.
    num_late = by_outcome["length"] - tally.num_answers
    assert tally.num_left_late <= num_late <= tally.num_left / 2, (num_late, tally.num_left)
    # A request whose client left before it was read counts as rejected, or never came.
    num_unread = by_outcome["rejected"] - tally.num_refused
    assert num_unread >= 0
    assert by_outcome["cancelled"] <= tally.num_left - num_late - num_unread
    assert by_outcome["cancelled"] > 0.25 * tally.num_left
    generated = metrics["dvi_generated_tokens_total"]
    accepted = sum(metrics[f"dvi_accepted_tokens_total{{{s}}}"] for s in ("neural", "memory"))
    assert generated == metrics["dvi_rounds_total"] + accepted
    delivered = tally.completion_tokens + num_late * LEAVER_TOKENS
    assert generated - metrics["dvi_cancelled_tokens_total"] == delivered
    assert tally.num_token_ids == tally.completion_tokens


def rate_and_error(drafts: Sequence[Draft]) -> tuple[float, float]:
    """accepted / judged, and its standard error where whole answers are independent."""
    judged = sum(draft.judged for draft in drafts)
    rate = sum(draft.accepted for draft in drafts) / judged
    squares = sum((draft.accepted - rate * draft.judged) ** 2 for draft in drafts)
    return rate, math.sqrt(squares) / judged


def check_flat_rate(drafts: Sequence[Draft]) -> None:
    """No quarter of a stationary stream differs from the whole by more than chance does."""
    rate, error = rate_and_error(drafts)
    assert 0 < rate < 1
    size = len(drafts) // 4
    for quarter in range(4):
        own, own_error = rate_and_error(drafts[quarter * size : (quarter + 1) * size])
        bound = MAX_STANDARD_ERRORS * math.hypot(error, own_error)
        assert abs(own - rate) < bound, (quarter, own, rate, bound)


def check_flat_memory(resident: Sequence[int]) -> None:
    """Resident memory of the last quarter within 3% of the second's."""
    size = len(resident) // 4
    second, last = mean(resident[size : 2 * size]), mean(resident[-size:])
    assert last < second * (1 + MAX_GROWTH), (second, last)


def test_a_mixed_load_with_swaps_fails_nothing_and_loses_no_token(tmp_path: Path) -> None:
    config = soak_config(tmp_path)
    mix = Mix(300)
    with live_server(config, tmp_path) as live:
        tally = run_mix(live.server.url, mix, swap_every_s=0.3, pid=os.getpid())
        check_identities(live.server.url, mix, tally)
        check_flat_rate(tally.drafts)
        swaps = metrics_of(live.server.url)["dvi_adapter_swaps_total{swapped}"]
    assert swaps >= 2
    assert tally.versions >= {1, 2}


def test_a_rate_that_moves_and_memory_that_grows_are_seen() -> None:
    steady = [Draft(10, 3 + i % 3) for i in range(400)]
    check_flat_rate(steady)
    moved = [
        *steady[:300],
        *(replace(draft, accepted=draft.accepted + 1) for draft in steady[300:]),
    ]
    with pytest.raises(AssertionError):
        check_flat_rate(moved)
    check_flat_memory([100] * 80)
    with pytest.raises(AssertionError):
        check_flat_memory([100] * 60 + [104] * 20)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_a_soak_stays_flat(tmp_path: Path) -> None:
    """20,000 requests; DVI_SOAK_REQUESTS for another number (below 2,000 memory still settles)."""
    config = soak_config(tmp_path)
    mix = Mix(NUM_REQUESTS)
    with server_process(config, tmp_path / "run") as process:
        url = str(process.http.base_url).rstrip("/")
        tally = run_mix(url, mix, swap_every_s=3.0, pid=process.popen.pid)
        print(f"{mix.num_requests} requests in {tally.seconds:.0f} s, versions {tally.versions}")
        check_identities(url, mix, tally)
        check_flat_rate(tally.drafts)
        check_flat_memory(tally.resident_bytes)
        assert process.stop() == 0


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
def test_a_server_whose_requests_never_draft_stays_flat(tmp_path: Path) -> None:
    config = soak_config(tmp_path)
    body = {"prompt": "SELECT name", "max_tokens": 6, "ignore_eos": True}
    plain = body | {"dvi": {"speculation": False}}
    resident: list[int] = []
    with server_process(config, tmp_path / "run") as process, ThreadPoolExecutor(16) as pool:
        url = str(process.http.base_url).rstrip("/")
        with httpx.Client(base_url=url, timeout=60) as client:

            def ask(seed: int) -> int:
                return client.post("/v1/completions", json=plain | {"seed": seed}).status_code

            for first in range(0, NUM_PLAIN_REQUESTS, 100):
                assert set(pool.map(ask, range(first, first + 100))) == {200}
                resident.append(resident_bytes(process.popen.pid))
        metrics = metrics_of(url)
        assert metrics["dvi_requests_total{length}"] == NUM_PLAIN_REQUESTS
        assert metrics["dvi_proposed_tokens_total{neural}"] == 0
        check_flat_memory(resident)
        assert process.stop() == 0
