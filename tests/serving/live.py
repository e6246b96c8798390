"""A real server in this process: tiny model folder, real engine, real store and registry.

Owns the small config; knows no property.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families
from safetensors.torch import save_file

from dvi.config import (
    DecodingConfig,
    DrafterConfig,
    DriftConfig,
    DviConfig,
    ModelConfig,
    RegistryConfig,
    ServingConfig,
    TrackingConfig,
    TrainerConfig,
)
from dvi.drafting.auto import sources_of
from dvi.drafting.block import BlockDrafter
from dvi.registry import ManifestFields, Registry
from serving.server import Server, running_server, survey
from tests.drafting.rows import random_tensors

MEASURED = {
    "candidate_agreement": 0.5,
    "gate_confidence": 0.96,
    "gate_confidence_wanted": 0.8,
    "train_agreement": 0.7,
    "training_id": 2.2e14,
}
NEVER = 1_000_000


def tiny_config(model: Path, state: Path) -> DviConfig:
    """Deterministic, so that answers are equal bits whatever runs beside them; no trainer; a
    promoted version drafts at once and stays: tests that mean canary or guard switch them on.
    """
    return DviConfig(
        state_dir=str(state),
        model=ModelConfig(path=str(model), num_threads=1, device="cpu"),
        drafter=DrafterConfig(kind="block"),
        decoding=DecodingConfig(deterministic=True, adaptive=False),
        serving=ServingConfig(port=0, max_context_len=256, drain_timeout_s=5.0),
        registry=RegistryConfig(poll_interval_s=0.02),
        tracking=TrackingConfig(interval_s=0.2),
        trainer=TrainerConfig(enabled=False),
        drift=DriftConfig(canary_share=0.0, guard_min_proposals=NEVER),
    )


@dataclass
class Live:
    """What a test holds."""

    server: Server
    http: httpx.Client
    client: openai.OpenAI

    def metrics(self) -> dict[str, float]:
        """Samples by ``name`` or ``name{label value}``."""
        text = self.http.get("/metrics").text
        return {
            sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@contextmanager
def live_server(config: DviConfig, run_dir: Path) -> Iterator[Live]:
    """Start, connect, drain, stop."""
    with running_server(survey(config, run_dir)) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        with httpx.Client(base_url=server.url, timeout=30) as http, client:
            yield Live(server, http, client)
            server.drain(5.0)


def publish_random(live: Live, seed: int, *, scale: float = 1.0, promote: bool = True) -> int:
    """A random version that fits the live draft, as the trainer would publish it."""
    drafter = sources_of(live.server.runtime.drafter).neural
    assert isinstance(drafter, BlockDrafter)
    layout = drafter.branch.layout
    tensors = random_tensors(layout, seed, scale)

    def write(folder: Path) -> None:
        save_file(tensors, folder / "adapter_model.safetensors")
        config = {"alpha_pattern": layout.alphas()}
        (folder / "adapter_config.json").write_text(json.dumps(config))

    registry = Registry(live.server.plant.state / "adapters")
    fields = ManifestFields(drafter.base_fingerprint, layout.drafter, metrics=MEASURED)
    version = registry.publish(write, fields)
    if promote:
        registry.promote(version, "test")
    return version


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
