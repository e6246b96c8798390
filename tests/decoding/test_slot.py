"""Draft weights change between rounds only, whole or not at all (ARCHITECTURE facts 1 and 5)."""

from __future__ import annotations

import threading
import weakref

import pytest

from dvi.decoding import AdapterSlot, Pair, decode_batch
from dvi.drafting import AdapterRefused, DraftWeights
from dvi.drift import Turn
from tests.decoding.engines import Ticks, make_request, make_rig
from tests.rigs import build_target


class Shelf:
    """A drafter as far as a slot sees it."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    def load(self, weights: DraftWeights) -> None:
        if weights.adapter_version < 0:
            raise AssertionError("not my kind")
        self.loaded.append(weights.adapter_version)


def test_the_newest_staged_version_is_loaded_once():
    shelf = Shelf()
    slot = AdapterSlot(shelf, Ticks())
    assert not slot.swap_if_staged()
    slot.stage(DraftWeights(1))
    slot.stage(DraftWeights(2))
    assert slot.swap_if_staged()
    assert not slot.swap_if_staged()
    assert shelf.loaded == [2]
    assert slot.counts() == {"swapped": 1, "refused": 0}


def test_weights_that_cannot_be_loaded_are_counted_and_the_old_ones_stay():
    shelf = Shelf()
    slot = AdapterSlot(shelf, Ticks())
    slot.stage(DraftWeights(1))
    slot.swap_if_staged()
    slot.stage(DraftWeights(-1))
    assert not slot.swap_if_staged()
    slot.count_refused()
    assert shelf.loaded == [1]
    assert slot.counts() == {"swapped": 1, "refused": 2}


class Seen(DraftWeights):
    """Weights whose end can be seen: a subclass without slots."""


@pytest.mark.parametrize("as_pair", [False, True])
def test_what_an_exchange_replaces_lives_until_it_is_dropped(as_pair: bool) -> None:
    slot = AdapterSlot(Shelf(), Ticks())
    first, second = Seen(1), Seen(2)
    ends = [weakref.ref(first), weakref.ref(second)]
    slot.stage(first)
    slot.swap_if_staged()
    slot.stage(Pair(second, first, 0.5) if as_pair else second)
    slot.swap_if_staged()
    if as_pair:
        assert {slot.take_turn(1) for _ in range(4)} > {Turn.CANARY}
        slot.stage(Seen(3))
        slot.swap_if_staged()
    del first, second
    assert [one() is not None for one in ends] == [True, True]
    slot.drop_replaced()
    assert [one() is not None for one in ends] == [False, not as_pair]


def test_versions_staged_from_other_threads_are_loaded_in_order_and_never_twice():
    shelf = Shelf()
    slot = AdapterSlot(shelf, Ticks())

    def stage_all() -> None:
        for version in range(1, 400):
            slot.stage(DraftWeights(version))

    thread = threading.Thread(target=stage_all)
    thread.start()
    while thread.is_alive():
        slot.swap_if_staged()
    slot.swap_if_staged()
    assert shelf.loaded == sorted(set(shelf.loaded))
    assert shelf.loaded[-1] == 399


def test_a_running_request_drafts_with_the_new_version_from_the_next_round_on():
    rig = make_rig(build_target("tiny-mix", seed=1), "block", draft_len=3)
    rig.engine.submit(make_request("r", (1, 2), max_tokens=40), lambda _: None)
    rig.engine.step()
    rig.engine.step()
    rig.stage("block", 5)
    assert rig.drafter.adapter_version == 0
    while rig.engine.step().worked:
        pass
    versions = [one.adapter_version for one in rig.traces[0].rounds if one.proposed_ids]
    assert versions[0] == 0
    assert set(versions[1:]) == {5}
    stats = rig.engine.stats()
    assert (stats.adapter_version, stats.swaps) == (5, {"swapped": 1, "refused": 0})


def test_a_refused_adapter_leaves_answers_and_version_as_they_were():
    rig = make_rig(build_target("tiny-mix", seed=1), "none")
    with pytest.raises(AdapterRefused):
        rig.stage("block", 5)
    (result,) = decode_batch(rig.engine, [make_request("r", (1, 2))])
    assert len(result.token_ids) == 24
    assert rig.engine.stats().adapter_version == 0
