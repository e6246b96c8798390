"""Nothing that an engine decides depends on a clock where costs are recorded (invariant 8)."""

from __future__ import annotations

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import decode_batch
from tests.decoding.engines import make_request, make_rig
from tests.decoding.profiles import profile
from tests.rigs import build_target


@pytest.mark.parametrize("kind", ["block", "memory", "auto"])
def test_an_engine_with_a_recorded_profile_repeats_itself(kind):
    target = build_target("tiny-mix", seed=30)
    requests = [
        make_request(f"r{i}", (1, 2, 3 + i), max_tokens=60, temperature=1.0, seed=i)
        for i in range(6)
    ]
    config = DecodingConfig(probe_interval_rounds=16)
    runs: list[object] = []
    for _ in range(2):
        rig = make_rig(target, kind, decoding=config, costs=profile())
        results = decode_batch(rig.engine, requests)
        runs.append((results, [trace.rounds for trace in rig.traces]))
    assert runs[0] == runs[1]
    plain = decode_batch(make_rig(target, "none").engine, requests)
    assert [r.token_ids for r in results] == [r.token_ids for r in plain]
