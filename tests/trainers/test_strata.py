"""Domains in the reservoir: a busy one pushes out none, however many tags there are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from dvi.replay import RowKey
from dvi.types import Trace
from tests.trainers.conftest import WorldMaker
from trainers.memory import Memory
from trainers.strata import FEWEST_ROWS, MOST_DOMAINS, OTHER, Strata, StrataState, label_of


def feed(memory: Memory, *domains: str) -> None:
    """One row of each domain, in order."""
    for domain in domains:
        key = RowKey("w", memory.num_spilled + len(memory.newest) + 1)
        memory.strata.name(key, domain)
        memory.admit([key])


def make_memory(seed: int = 0) -> Memory:
    return Memory(newest_rows=1, reservoir_rows=20, seed=seed)


def sizes(memory: Memory) -> Counter[int]:
    return Counter(map(memory.strata.of, memory.reservoir))


def test_a_rare_domain_keeps_its_rows_and_an_old_one_its_share() -> None:
    memory = make_memory()
    feed(memory, *["rare"] * 9, *["busy"] * 1000)
    assert sizes(memory) == {label_of("rare"): 9, label_of("busy"): 11}
    feed(memory, *["late"] * 30)
    assert sorted(sizes(memory).values()) == [6, 7, 7]
    feed(memory, *[""] * 500)  # without a tag
    assert sorted(sizes(memory).values()) == [5, 5, 5, 5]
    assert sizes(memory)[OTHER] == 5


def test_rows_of_equal_domains_stay_with_equal_probability() -> None:
    """No exchange at every turn: else the newest rows alone would stay."""
    counts: Counter[int] = Counter()
    for seed in range(600):
        memory = make_memory(seed)
        feed(memory, *["a", "b", "c"] * 40)
        counts.update(key.seq for key in memory.reservoir)
    # 119 rows spilled, each in 600 * 20 / 119 = 101 worlds, standard deviation 9.
    assert set(counts) <= set(range(1, 120))
    quarters = [sum(counts[seq] for seq in range(1 + 30 * i, 31 + 30 * i)) for i in range(3)]
    assert all(abs(quarter - 30 * 101) < 300 for quarter in quarters), quarters


def test_tags_that_never_come_again_push_out_nobody() -> None:
    memory = make_memory()
    feed(memory, *["tagged"] * 200, *(f"request {number}" for number in range(2000)))
    assert sizes(memory) == {label_of("tagged"): 10, OTHER: 10}
    assert len(memory.strata.snapshot().counts) <= MOST_DOMAINS
    # What is known of rows that are gone is forgotten.
    assert len(memory.strata.snapshot().labels) == len(memory)
    assert memory.forget(set(memory.reservoir[:6])) == 6
    assert len(memory.strata.snapshot().labels) == len(memory) == 15


def test_a_domain_is_told_apart_from_its_eighth_row_on_and_while_it_is_busy() -> None:
    strata = Strata()
    rows = [RowKey("w", seq) for seq in range(1, 10)]
    for number, key in enumerate(rows, start=1):
        strata.name(key, "a")
        strata.count(key)
        assert (strata.of(key) == label_of("a")) == (number >= FEWEST_ROWS)
        assert strata.seen(OTHER) + strata.seen(label_of("a")) == number
    for seq in range(10, 10 + 2 * MOST_DOMAINS + 1):
        other = RowKey("w", seq)
        strata.name(other, f"other {seq}")
        strata.count(other)
    assert strata.of(rows[0]) == OTHER  # nine rows less two rounds of decrements
    assert (strata.seen(label_of("a")), strata.seen(OTHER)) == (0, 9 + 2 * MOST_DOMAINS + 1)


def test_a_restored_memory_goes_on_as_if_it_had_never_stopped() -> None:
    whole, parted = make_memory(), make_memory()
    domains = ["a", "b", "", "c"] * 30
    feed(whole, *domains)
    feed(parted, *domains[:70])
    state = parted.snapshot()
    again = make_memory()
    again.restore(state)
    assert again.snapshot() == state
    feed(again, *domains[70:])
    assert again.snapshot() == whole.snapshot()
    assert make_memory().snapshot().strata == StrataState()


def test_rows_bring_the_domain_of_their_trace_and_no_text_of_it(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    tagged = [replace(trace, domain="my secret") for trace in traces[:4]]
    training = world_of("world", [*tagged, *traces[4:8]]).training()
    training.take_new(8)
    labels = training.parts.intake.memory.strata.snapshot().labels
    assert [label for _, label in labels] == [label_of("my secret")] * 4
    assert b"secret" not in training.save().read_bytes()
