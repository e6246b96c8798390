"""Counts at the first position: by version, by domain, by request."""

import pytest

from dvi.drift import FirstCounts, LiveAcceptance
from dvi.drift.live import MAX_DOMAINS, MAX_VERSIONS, OTHER, WINDOW, BusyDomains
from dvi.types import Round, Source


def round_of(num_accepted, num_judged=2, version=1, source=Source.NEURAL):
    return Round(source, version, tuple(range(num_judged)), (), num_accepted)


def in_domain(live, domain="a"):
    live.request_done(("first", 0), domain)  # takes the place
    return domain


def test_only_the_first_position_of_neural_proposals_counts():
    live = LiveAcceptance()
    domain = in_domain(live)
    for accepted, judged in ((0, 1), (1, 2), (4, 4)):
        live.round_done(("r", 0), domain, round_of(accepted, judged))
    live.round_done(("r", 0), domain, round_of(3, 4, source=Source.MEMORY))
    live.round_done(("r", 0), domain, round_of(0, 0, source=Source.TARGET))
    assert live.by_version() == {1: {"a": FirstCounts(3, 2)}}
    live.request_done(("r", 0), domain)
    (ended,) = live.take_ended()
    assert (ended.domain, ended.counts) == ("a", FirstCounts(3, 2))
    assert live.take_ended() == []


def test_the_version_that_drafted_last_stands_last_and_old_ones_leave():
    live = LiveAcceptance()
    for version in [*range(MAX_VERSIONS + 2), 3]:
        live.round_done(("r", 0), "a", round_of(1, version=version))
    assert list(live.by_version()) == [2, 4, 5, 3]


def test_requests_without_proposals_and_cancelled_ones_are_not_reported():
    live = LiveAcceptance()
    live.request_done(("none", 0), "a")
    live.round_done(("gone", 0), "a", round_of(1))
    live.keep_only({("other", 0)})
    live.request_done(("gone", 0), "a")
    assert live.take_ended() == []


def test_the_busiest_domains_are_told_apart_and_the_rest_is_other():
    busy = BusyDomains()
    for n in range(MAX_DOMAINS):
        for _ in range(2 + n):
            busy.request_ended(f"d{n}")
    busy.request_ended("late")
    assert [busy.name(f"d{n}") for n in range(MAX_DOMAINS)] == [f"d{n}" for n in range(MAX_DOMAINS)]
    assert busy.name("late") == OTHER
    for _ in range(4):
        busy.request_ended("late")
    assert busy.name("late") == "late"  # five requests against two
    assert busy.name("d0") == OTHER


def test_old_proposals_fade():
    live = LiveAcceptance()
    domain = in_domain(live)
    for n in range(3 * WINDOW):
        live.round_done(("r", 0), domain, round_of(int(n >= WINDOW)))
    (counts,) = live.by_version()[1].values()
    assert counts.tried <= WINDOW + 1
    # WINDOW misses, then 2 WINDOW hits with a halving each time the window is full
    assert counts.accepted / counts.tried > 0.8
    assert counts.tried == pytest.approx(round(counts.tried))
