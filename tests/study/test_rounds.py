"""Rounds walked through known hits count what the engine counts."""

from __future__ import annotations

import pytest

from dvi.study.rounds import Counts, Cycle, count, count_letters, letters, walk
from dvi.types import Round, Source


def bits(text: str) -> list[bool]:
    return [letter == "1" for letter in text]


@pytest.mark.parametrize(
    ("hits", "draft_len", "max_tokens", "expected"),
    [
        # one token accepted, the next rejected; then a reject at once; the last token is proposed
        # for, since the limit is far, and missed
        ("10000", 2, 99, [(0, 2, 1), (2, 1, 0), (3, 1, 0), (4, 1, 0)]),
        # two of two accepted and the target's own; then the end token is proposed: it counts as
        # the target's own, so that nothing of it is judged
        ("1111", 2, 99, [(0, 2, 2), (3, 0, 0)]),
        # the limit is the answer's length: nothing is proposed for its last token
        ("1110", 4, 4, [(0, 3, 3)]),
        ("0000", 4, 4, [(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 0, 0)]),
        # an answer that ends inside a round
        ("111", 4, 99, [(0, 2, 2)]),
    ],
)
def test_a_walk_stops_where_a_live_round_stops(
    hits: str, draft_len: int, max_tokens: int, expected: list[tuple[int, int, int]]
) -> None:
    assert list(walk(bits(hits), draft_len, max_tokens)) == [Cycle(*one) for one in expected]


@pytest.mark.parametrize("draft_len", [1, 2, 3, 8])
@pytest.mark.parametrize("hits", ["1", "0", "1101001110111", "1" * 20, "0" * 7])
def test_generated_is_rounds_plus_accepted(hits: str, draft_len: int) -> None:
    for max_tokens in (len(hits), 99):
        found = count(bits(hits), draft_len, max_tokens)
        assert found.rounds + found.accepted == len(hits)
        assert 0 <= found.accepted <= found.judged <= found.accepted + found.rounds


def test_a_perfect_draft_has_alpha_one_at_every_length() -> None:
    for draft_len in range(1, 9):
        assert count(bits("1" * 17), draft_len, 99).alpha == 1.0


def test_counts_add_up_and_nothing_has_no_rate() -> None:
    total = Counts(2, 3, 1) + Counts(1, 1, 1)
    assert total == Counts(3, 4, 2)
    assert (total.alpha, total.tokens_per_round) == (0.5, 1 + 2 / 3)
    assert (Counts().alpha, Counts().tokens_per_round) == (0.0, 0.0)


def test_rounds_in_letters_keep_source_and_counts() -> None:
    rounds = [
        (Round(Source.MEMORY, 0, (5, 6, 7), (), 2), False),  # the third was rejected
        (Round(Source.NEURAL, 3, (8, 9), (-0.1, -0.1), 2), False),  # K were accepted
        (Round(Source.NEURAL, 3, (9,), (-0.1,), 0), True),  # one proposed, and rejected
        (Round(Source.MEMORY, 0, (4,), (), 1), True),  # it had no more to say
        (Round(Source.TARGET, 0, (), (), 0), True),  # nothing at all
        (Round(Source.TARGET, 0, (), (), 0), False),  # nothing was asked for the last token
    ]
    text = "".join(letters(one, is_short=short) for one, short in rounds)
    assert text == "mmM" + "nn." + "N" + "m-" + "-" + "."
    found = count_letters(text)
    assert found == Counts(rounds=6, judged=7, accepted=5, silent=2)
    assert found.alpha == 5 / 7
    assert found.rate == 5 / 9
    assert found + found == Counts(12, 14, 10, 4)
    assert count_letters("") == Counts()
