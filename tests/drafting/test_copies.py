"""An answer that copied from its prompt says where ours copies from.

Ids: 1, 2 say where a word stands in a prompt, 50 to 59 are words of earlier prompts, 60 to 69 of
ours; answers of the form begin with 10.
"""

from __future__ import annotations

import pytest

from dvi.drafting import DraftRequest
from dvi.drafting.base import Context, Match
from dvi.drafting.memory import PROMPT_TOKENS
from dvi.drafting.occurrence import PLACE_TOKENS
from dvi.types import SamplingParams
from tests.drafting.test_memory import ask, memory


def test_a_word_that_an_answer_copied_is_copied_from_the_same_place_of_ours():
    drafter = memory()
    drafter.remember([1, 2, 50, 3, 4], [10, 11, 50, 12, 13], "")
    assert ask(drafter, [1, 2, 60, 3, 4, 10]) == (11, 60, 12, 13)


def test_a_copy_of_several_tokens_goes_on_where_it_is():
    drafter = memory()
    drafter.remember([1, 2, 51, 52, 53, 3], [10, 51, 52, 53, 12], "")
    # Nothing of ours follows 51 or 52: only the place of the token before says what comes next.
    assert ask(drafter, [1, 2, 61, 62, 63, 3, 10]) == (61, 62, 63, 12)


def test_our_word_may_be_longer_and_ends_where_ours_goes_on_as_theirs_did():
    drafter = memory()
    drafter.remember([1, 2, 50, 3], [10, 50, 12, 13], "")
    assert ask(drafter, [1, 2, 61, 62, 63, 3, 10], 5) == (61, 62, 63, 12, 13)


def test_answers_that_copied_different_words_agree_on_ours():
    drafter = memory()
    for word in (50, 51, 52):
        drafter.remember([1, 2, word, 3], [10, word, 12], "")
    drafter.remember([1, 2, 53, 3], [10, 13], "")  # copied nothing
    params = SamplingParams(max_tokens=9, temperature=0.0)
    request = DraftRequest(0, 4, 10, 2, params, Context([1, 2, 60, 3, 10]))
    (proposal,) = drafter.recall([request])
    assert proposal.ids == (60, 12)
    assert proposal.matches == (Match(2, 3, 4), Match(3, 3, 3))


def test_what_several_answers_share_is_no_copy():
    drafter = memory()
    for _ in range(2):
        drafter.remember([1, 2, 50, 3], [10, 50, 12], "")
    assert ask(drafter, [1, 2, 60, 3, 10]) == (50, 12)


@pytest.mark.parametrize(
    "ours",
    [
        [7, 8, 60, 3],  # no such place
        [7, 2, 60, 3],  # one word alone does not say where
    ],
)
def test_without_such_a_place_an_answer_is_taken_at_its_word(ours):
    drafter = memory()
    drafter.remember([1, 2, 50, 3], [10, 50, 12], "")
    assert ask(drafter, [*ours, 10]) == (50, 12)


def test_of_equal_tokens_the_newest_was_copied_and_of_equal_places_the_newest_is_meant():
    drafter = memory()
    drafter.remember([5, 6, 50, 1, 2, 50, 3], [10, 50], "")
    assert ask(drafter, [5, 6, 61, 1, 2, 62, 1, 2, 63, 3, 10]) == (63,)


def test_nothing_is_copied_from_another_answer():
    drafter = memory()
    drafter.remember([1, 2, 50, 3], [9], "")
    drafter.remember([4], [10, 50, 12], "")
    assert ask(drafter, [1, 2, 60, 3, 4, 10]) == (50, 12)


def test_an_example_in_the_prompt_shows_what_is_copied():
    example = [1, 2, 50, 3, 10, 50, 12, 14]
    assert ask(memory(), [*example, 1, 2, 60, 3, 10]) == (60, 12, 14, 1)


def test_a_copy_does_not_run_out_of_an_expected_text():
    drafter = memory()
    drafter.remember([1, 2, 50, 51, 3], [10, 50, 51, 12], "")
    params = SamplingParams(max_tokens=9, temperature=0.0)
    for tokens in ([3], [3, 10]):  # the client expects 1, 2, 60 and no more, and 10 comes first
        context = Context(tokens, prediction_ids=(1, 2, 60))
        request = DraftRequest(0, len(tokens) - 1, tokens[-1], 4, params, context)
        (proposal,) = drafter.recall([request])
    assert proposal.ids == (60, 51, 12)


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_end_of_a_prompt_is_kept_for_its_answers_copies(is_kept):
    drafter = memory()
    # The word and what says where it stands come first in what is kept, or just before that.
    filling = [4] * (PROMPT_TOKENS - PLACE_TOKENS - 1 + (not is_kept) * PLACE_TOKENS)
    place = list(range(1000, 1000 + PLACE_TOKENS))
    drafter.remember([*place, 50, *filling], [10, 50, 12], "")
    assert ask(drafter, [*place, 60, 4, 10]) == ((60, 12) if is_kept else (50, 12))
