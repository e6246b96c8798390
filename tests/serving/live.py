"""A real server in this process: tiny model folder, real engine, real store and registry.

Owns the small config; knows no property.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
from prometheus_client.parser import text_string_to_metric_families

from dvi.config import (
    DecodingConfig,
    DviConfig,
    ModelConfig,
    RegistryConfig,
    ServingConfig,
    TrackingConfig,
    TrainerConfig,
)
from serving.server import Server, running_server, survey


def tiny_config(model: Path, state: Path) -> DviConfig:
    """Deterministic, so that answers are equal bits whatever runs beside them; no trainer."""
    return DviConfig(
        state_dir=str(state),
        model=ModelConfig(path=str(model), num_threads=1, device="cpu"),
        decoding=DecodingConfig(deterministic=True, adaptive=False),
        serving=ServingConfig(port=0, max_context_len=256, drain_timeout_s=5.0),
        registry=RegistryConfig(poll_interval_s=0.02),
        tracking=TrackingConfig(interval_s=0.2),
        trainer=TrainerConfig(enabled=False),
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
