"""A trial on a running server: what a user sees of it over HTTP."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dvi.config import DriftConfig
from dvi.registry import Act, Registry
from tests.serving.live import Live, live_server, publish_random, tiny_config, wait_for

PROMPT = "The quick brown fox"


def ask(live: Live) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, "seed": 7}
    return live.http.post("/v1/completions", json=body).json()


@pytest.mark.slow
def test_a_trial_shows_in_metrics_admin_and_history_and_in_no_answer(
    tiny_model: Path, tmp_path: Path
) -> None:
    drift = DriftConfig(canary_share=0.25, canary_min_proposals=8)
    config = replace(tiny_config(tiny_model, tmp_path / "state"), drift=drift)
    with live_server(config, tmp_path) as live:
        expected = ask(live)["choices"]
        first = publish_random(live, 1)  # beside the untrained draft: no trial
        assert wait_for(lambda: live.metrics()["dvi_adapter_version"] == first)
        version = publish_random(live, 2)

        def canary() -> int | None:
            answer: int | None = live.http.get("/admin/adapters").json()["canary"]
            return answer

        assert wait_for(lambda: canary() == version)  # without traffic it does not end
        overview = live.http.get("/admin/adapters").json()
        assert (overview["current"], overview["live"]) == (version, first)
        during = live.metrics()
        assert during["dvi_canary_version"] == version
        assert during["dvi_adapter_version"] == first
        spans = []

        def ended() -> bool:
            answer = ask(live)
            assert answer["choices"] == expected
            spans.append(answer["dvi"]["adapter_versions"])
            metrics = live.metrics()
            names = ("settled", "rolled_back")
            return sum(metrics[f"dvi_canary_decisions_total{{{one}}}"] for one in names) == 1

        assert wait_for(ended, 60.0)
        after = live.metrics()
        assert after["dvi_canary_version"] == 0
        assert after["dvi_canary_first_proposed_tokens_total{canary}"] >= 4  # half of 8
        assert after["dvi_canary_rounds_total"] <= 0.25 * after["dvi_rounds_total"]
        assert {number for span in spans for number in span} <= {first, version}
        events = Registry(tmp_path / "state" / "adapters").history()
        acts = {n: [one.act for one in events if one.version == n] for n in (first, version)}
        assert acts[first][:3] == [Act.PUBLISH, Act.PROMOTE, Act.SETTLE]
        assert acts[version][:3] == [Act.PUBLISH, Act.PROMOTE, Act.CANARY]
        assert len(events) == 7
        assert events[-1].act in (Act.SETTLE, Act.ROLLBACK)
