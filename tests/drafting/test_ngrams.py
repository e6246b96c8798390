"""The n-gram index finds what a plain search finds, and forgets all of what it is told to."""

from __future__ import annotations

import random

import pytest

from dvi.drafting.memory import index_orders
from dvi.drafting.ngrams import END, MAX_PLACES, NO_MATCH, NgramIndex

ORDERS = (1, 2, 4, 8)


def longest_by_search(
    documents: list[list[int]], context: list[int], limit: int
) -> tuple[int, list[tuple[int, int]]]:
    """Length of the longest match and all (document, offset) that follow such a match."""
    best, found = 0, []
    for number, ids in enumerate(documents):
        for offset in range(1, len(ids)):
            length = 0
            while (
                length < min(limit, len(context), offset)
                and ids[offset - 1 - length] == context[-1 - length]
            ):
                length += 1
            if length > best:
                best, found = length, []
            if length == best and length:
                found.append((number, offset))
    return best, found


def at(index: NgramIndex, place: int) -> int:
    """The id at a place."""
    return index.ids[index.offsets([place])[0]]


def filled(documents: list[list[int]], pieces: random.Random) -> tuple[NgramIndex, list[int]]:
    """An index of the documents, each appended in random pieces; and where each starts."""
    index, starts = NgramIndex(ORDERS), []
    for ids in documents:
        starts.append(index.end)
        rest = ids
        while rest:
            cut = pieces.randint(1, len(rest))
            index.extend(rest[:cut])
            rest = rest[cut:]
        index.close()
    return index, starts


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_match_and_all_its_places_are_found(seed):
    rng = random.Random(seed)
    num_ids = rng.choice([2, 5, 30])  # few ids: long matches; many: short ones
    documents = [[rng.randrange(num_ids) for _ in range(rng.randint(1, 12))] for _ in range(6)]
    index, starts = filled(documents, rng)
    for _ in range(40):
        context = [rng.randrange(num_ids + 1) for _ in range(rng.randint(1, 14))]
        limit = rng.choice([1, 3, 8, 16])
        length, found = longest_by_search(documents, context, limit)
        matches = index.longest(context, limit)
        assert matches.length == length
        # A table keeps the newest places only, so of many matches some may be missing.
        expected = [starts[number] + offset for number, offset in found]
        assert set(matches.places) <= set(expected)
        if len(expected) <= 3:
            assert set(matches.places) == set(expected)
        for place in matches.places:
            assert at(index, place) != END


def test_an_end_that_nothing_follows_is_no_place():
    index = NgramIndex(ORDERS)
    index.extend([1, 2, 3])
    assert index.longest([3], 8) == NO_MATCH
    index.extend([4])
    assert index.longest([3], 8).length == 1


def test_no_match_crosses_the_end_of_a_document():
    index = NgramIndex(ORDERS)
    index.extend([1, 2])
    index.close()
    index.extend([3, 4])
    assert index.longest([2], 8) == NO_MATCH
    assert index.longest([1, 2, 3], 8).length == 1  # the 3 alone
    assert [at(index, place) for place in index.longest([3], 8).places] == [4]


def test_context_ids_are_matched_but_never_proposed():
    index = NgramIndex(ORDERS)
    index.extend([5, 6, 7, 8], num_unseen=3)
    assert index.longest([5, 6], 8) == NO_MATCH
    matches = index.longest([9, 6, 7], 8)
    assert (matches.length, at(index, matches.places[0])) == (2, 8)


def test_the_newest_places_of_a_frequent_id_are_kept():
    index = NgramIndex((1,))
    for number in range(MAX_PLACES + 9):
        index.extend([1, 10 + number])
        index.close()
    places = index.longest([1], 8).places
    assert [at(index, place) for place in places] == list(range(19, MAX_PLACES + 19))


@pytest.mark.parametrize("seed", range(8))
def test_removed_documents_leave_no_entry_and_no_match(seed):
    rng = random.Random(seed)
    documents = [[rng.randrange(6) for _ in range(rng.randint(1, 30))] for _ in range(10)]
    index, starts = filled(documents, rng)
    order = list(range(10))
    rng.shuffle(order)
    left = dict(enumerate(documents))
    for number in order:
        index.remove(starts[number], len(documents[number]))
        del left[number]
        context = [rng.randrange(6) for _ in range(8)]
        found = index.longest(context, 16)
        assert found.length <= longest_by_search(list(left.values()), context, 16)[0]
        for place in found.places:
            assert any(
                start <= place < start + len(left[n]) for n, start in enumerate(starts) if n in left
            )
    assert index.num_entries == 0
    index.extend([1, 2, 3])
    assert index.longest([1], 4).length == 1


def test_memory_does_not_grow_while_documents_come_and_go():
    rng = random.Random(0)
    index = NgramIndex(ORDERS)
    spans: list[tuple[int, int]] = []
    sizes = []
    for number in range(3000):
        ids = [rng.randrange(1000) for _ in range(20)]
        spans.append((index.end, len(ids)))
        index.extend(ids)
        index.close()
        if len(spans) > 50:
            index.remove(*spans.pop(0))
        if number > 1000:
            sizes.append(len(index.ids))
    assert index.num_entries <= 51 * 20 * len(ORDERS)
    assert max(sizes) < 51 * 21 + 4096 + 42  # the live documents and the head not yet dropped


def test_orders_double_between_the_shortest_and_the_longest_match():
    assert index_orders(1, 16) == (1, 2, 4, 8)
    assert index_orders(3, 16) == (3, 6)
    assert index_orders(2, 2) == (2,)
