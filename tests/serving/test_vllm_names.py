"""vLLM's counters of a server that was asked for them, after real drafts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.serving.live import live_server, tiny_config


def test_the_counters_hold_what_the_responses_say(tiny_model: Path, tmp_path: Path) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    config = replace(config, serving=replace(config.serving, vllm_metric_names=True))
    with live_server(config, tmp_path) as live:
        body = {"prompt": "SELECT name FROM orders", "max_tokens": 24, "ignore_eos": True}
        said = live.http.post("/v1/completions", json=body).json()["dvi"]
        text = live.http.get("/metrics").text
    labels = 'engine="0",model_name="tiny"'
    assert said["proposed"] > 0
    for name, value in (("draft", "proposed"), ("accepted", "accepted")):
        line = f"vllm:spec_decode_num_{name}_tokens_total{{{labels}}} {said[value]:.1f}"
        assert line in text.splitlines(), line
