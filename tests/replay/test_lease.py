"""One holder at a time, whatever dies: on both databases, with clocks that only the test moves."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from dvi.replay import LeaseLost, ReplayStore, ReplayStoreError
from dvi.replay.lease import LEASE_S, RENEW_S, TRUST_S
from tests.replay.fakes import Place, make_store
from tests.replay.test_store import Clock


@pytest.fixture
def store(place: Place) -> Iterator[ReplayStore]:
    with make_store(place) as opened:
        yield opened


def test_one_of_many_takes_it_and_the_next_one_when_it_is_given_back(store: ReplayStore) -> None:
    leases = [store.lease(f"m{i}") for i in range(5)]
    taken: list[int] = []

    def race(number: int) -> None:
        if leases[number].take():
            taken.append(number)

    threads = [threading.Thread(target=race, args=(i,)) for i in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (first,) = taken
    leases[first].check()
    assert leases[first].holder() == f"m{first}"
    leases[first].give_back()
    other = leases[first - 1]
    assert other.take()
    assert not leases[first - 2].take()


def test_a_beat_that_stands_still_for_the_whole_time_frees_it(store: ReplayStore) -> None:
    clock = Clock()
    dead, waiting = store.lease("dead", clock), store.lease("waiting", clock)
    assert dead.take()
    assert not waiting.take()
    clock.now_s += LEASE_S - RENEW_S
    dead.renew()  # its last
    assert not waiting.take()
    clock.now_s += LEASE_S - 0.001
    assert not waiting.take()
    clock.now_s += 0.001
    assert waiting.take()
    waiting.check()


def test_a_holder_that_cannot_beat_stops_before_another_may_start(store: ReplayStore) -> None:
    clock = Clock()
    cut_off, waiting = store.lease("cut off", clock), store.lease("waiting", clock)
    assert cut_off.take()
    assert not waiting.take()  # the earliest look there can be
    clock.now_s += TRUST_S
    cut_off.check()
    clock.now_s += 0.001
    with pytest.raises(ReplayStoreError, match="lease"):
        cut_off.check()
    assert not waiting.take()
    cut_off.renew()  # the database is back before anybody took over
    cut_off.check()
    clock.now_s += LEASE_S
    assert not waiting.take()  # it has seen the beat move
    clock.now_s += LEASE_S
    assert waiting.take()
    with pytest.raises(ReplayStoreError, match="lease"):
        cut_off.check()
    cut_off.renew()
    with pytest.raises(LeaseLost):
        cut_off.check()
    cut_off.give_back()  # not its own any more
    waiting.renew()
    waiting.check()


def test_a_holder_that_starts_again_does_not_wait_and_its_old_process_has_lost(
    store: ReplayStore,
) -> None:
    before, after = store.lease("same folder"), store.lease("same folder")
    assert before.take()
    assert after.take()
    before.renew()
    with pytest.raises(LeaseLost):
        before.check()


def test_a_clock_that_jumps_elsewhere_frees_nothing(store: ReplayStore) -> None:
    ahead, behind = Clock(), Clock()
    ahead.now_s += 1e6
    holder, waiting = store.lease("holder", behind), store.lease("waiting", ahead)
    assert holder.take()
    for _ in range(20):
        ahead.now_s += LEASE_S - 1
        holder.renew()
        assert not waiting.take()


def test_beating_does_not_wait_for_a_long_append(database: str) -> None:
    """On PostgreSQL; SQLite has one writer, and its waits are bounded by the busy timeout."""
    with make_store(database) as store:
        lease = store.lease("holder")
        assert lease.take()
        with store._database.writing():
            lease.renew()
        lease.check()
