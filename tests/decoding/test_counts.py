"""Counters, deltas and observers tell the same story (invariant 9)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest

from dvi.decoding import (
    EngineLimits,
    Outcome,
    Phase,
    decode_batch,
)
from dvi.types import Delta, FinishReason, Source
from tests.decoding.engines import (
    LIMITS,
    make_request,
    make_rig,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=20)
SMALL = EngineLimits(num_rows=2, max_queue=3, max_context_len=160, max_draft_len=8, top_ids=4)


def test_counters_are_the_sums_of_what_was_delivered():
    rig = make_rig(TARGET, "block", draft_len=5)
    requests = [
        make_request(f"r{n}", random_prompt(n, n + 1, 64), max_tokens=5 + 3 * n, draft_len=n % 6)
        for n in range(9)
    ]
    results = decode_batch(rig.engine, requests)
    stats = rig.engine.stats()
    counts = stats.counts
    for name in ("rounds", "proposed", "judged", "accepted"):
        total = sum(getattr(result.counts, name) for result in results)
        assert getattr(counts, name) == total
    assert stats.generated_tokens == counts.rounds + counts.accepted
    assert stats.generated_tokens == sum(len(result.token_ids) for result in results)
    assert stats.prompt_tokens == sum(len(request.prompt_ids) for request in requests)
    assert sum(stats.proposed_per_position) == counts.proposed
    assert sum(stats.accepted_per_position) == counts.accepted
    assert list(stats.accepted_per_position) == sorted(stats.accepted_per_position, reverse=True)
    assert len(stats.proposed_per_position) == LIMITS.max_draft_len
    mean_accepted_length = 1 + sum(stats.accepted_per_position) / counts.rounds
    assert mean_accepted_length == counts.mean_accepted_length()
    assert counts.by_source[Source.NEURAL].judged == counts.judged
    assert set(stats.phase_s) == set(Phase)
    assert all(seconds > 0 for seconds in stats.phase_s.values())
    assert stats.draft_len <= 5
    assert stats.acceptance_fast > 0


def test_first_positions_are_those_of_the_per_position_counters_by_version_and_domain():
    rig = make_rig(TARGET, "block", draft_len=3)
    requests = [
        replace(make_request(f"r{n}", random_prompt(n, 4, 64), max_tokens=8), domain="ab"[n % 2])
        for n in range(6)
    ]
    decode_batch(rig.engine, requests)
    live, stats = rig.engine.parts.live, rig.engine.stats()
    (by_domain,) = live.by_version().values()
    assert sum(counts.tried for counts in by_domain.values()) == stats.proposed_per_position[0] > 0
    assert sum(counts.accepted for counts in by_domain.values()) == stats.accepted_per_position[0]
    ended = live.take_ended()
    assert sorted(one.domain for one in ended) == list("aaabbb")
    assert sum(one.counts.tried for one in ended) == stats.proposed_per_position[0]


def test_an_answer_is_counted_before_it_is_delivered():
    rig = make_rig(TARGET, "head")
    seen = []

    def look(delta: Delta) -> None:
        stats = rig.engine.stats()
        seen.append((delta.finish_reason, stats.generated_tokens, stats.requests[Outcome.LENGTH]))

    rig.engine.submit(make_request("r", (1, 2), max_tokens=7), look)
    while rig.engine.step().worked:
        pass
    assert seen[-1] == (FinishReason.LENGTH, 7, 1)


class Watch:
    """Everything an observer is told."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, ...]]] = defaultdict(list)

    def queue_wait(self, seconds: float) -> None:
        self.calls["queue_wait"].append((seconds,))

    def first_token(self, seconds: float) -> None:
        self.calls["first_token"].append((seconds,))

    def inter_token(self, seconds: float, num_tokens: int) -> None:
        self.calls["inter_token"].append((seconds, num_tokens))

    def request_done(self, seconds: float) -> None:
        self.calls["request_done"].append((seconds,))

    def request_acceptance(self, rate: float) -> None:
        self.calls["request_acceptance"].append((rate,))

    def swap_pause(self, seconds: float) -> None:
        self.calls["swap_pause"].append((seconds,))


def test_observers_hear_of_every_wait_delivery_and_end():
    watch = Watch()
    rig = make_rig(build_target("tiny-ident", seed=2), "head", draft_len=2, observer=watch)
    rig.slot.stage(rig.drafter.prepare(None))
    results = decode_batch(
        rig.engine, [make_request(f"r{n}", (1, 2, n), max_tokens=10) for n in range(6)]
    )
    calls = watch.calls
    assert len(calls["queue_wait"]) == len(calls["first_token"]) == len(calls["request_done"]) == 6
    assert len(calls["swap_pause"]) == 1
    num_rounds = sum(result.counts.rounds for result in results)
    assert len(calls["inter_token"]) == num_rounds - 6
    later = sum(tokens for _, tokens in calls["inter_token"])
    assert 0 < len(calls["inter_token"]) < later < 60
    # The gaps of a request add up to the time from its first delivery to its last.
    gaps_s = sum(seconds * tokens for seconds, tokens in calls["inter_token"])
    spans_s = sum(s for (s,) in calls["request_done"]) - sum(s for (s,) in calls["first_token"])
    assert gaps_s == pytest.approx(spans_s)
    rates = sorted(rate for (rate,) in calls["request_acceptance"])
    assert rates == sorted(result.counts.acceptance_rate() for result in results)
    for (queued,), (first,), (done,) in zip(
        calls["queue_wait"], calls["first_token"], calls["request_done"], strict=True
    ):
        assert 0 < queued < first <= done
