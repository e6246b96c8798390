"""Bias, penalties and min_tokens: vLLM's formulas, and a history that walks both ways."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dvi.sampling.processors import (
    Processors,
    TokenHistory,
    asks_for_processing,
    check_processors,
    ending_ids,
)
from dvi.types import SamplingParams

VOCAB = 700  # above the first room of a history
PLAIN = SamplingParams(max_tokens=8)


def adjusted(params: SamplingParams, prompt: list[int], output: list[int], row: np.ndarray):
    """``row`` as a session that has walked over ``output`` turns it."""
    processors = Processors(params, prompt)
    for token_id in output:
        processors.push(token_id)
    got = row.copy()
    processors.adjust(got)
    return got


def test_one_token_of_each_kind_is_penalised_by_hand():
    row = np.array([2.0, -2.0, 3.0, 1.0, 5.0])
    params = replace(
        PLAIN, repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=0.5,
        logit_bias=((3, 1.0), (4, -100.0)),
    )  # fmt: skip
    got = adjusted(params, prompt=[0, 1], output=[1, 2, 2], row=row)
    # 0: prompt only, 2 / 2. 1: prompt and output once, -2 * 2 - .25 - .5. 2: twice in the output,
    # 3 / 2 - 2 * .25 - .5. 3 and 4: bias only.
    assert got.tolist() == [1.0, -4.75, 0.5, 2.0, -95.0]


def test_the_bias_comes_before_the_repetition_penalty():
    params = replace(PLAIN, repetition_penalty=2.0, logit_bias=((0, -3.0),))
    # 1 - 3 = -2, then doubled because it is negative; the other order would give 1 / 2 - 3
    assert adjusted(params, [0], [], np.array([1.0])).tolist() == [-4.0]


@pytest.mark.parametrize("seed", range(20))
def test_penalties_equal_the_formulas_over_whole_vocabulary_counts(seed):
    rng = random.Random(seed)
    prompt = [rng.randrange(VOCAB) for _ in range(rng.choice([1, 300]))]
    output = [rng.randrange(rng.choice([5, VOCAB])) for _ in range(rng.choice([0, 3, 400]))]
    params = replace(
        PLAIN,
        repetition_penalty=rng.choice([1.0, 0.5, 1.7]),
        frequency_penalty=rng.uniform(-2, 2),
        presence_penalty=rng.uniform(-2, 2),
    )
    row = np.random.default_rng(seed).normal(size=VOCAB)
    counts = np.bincount(output, minlength=VOCAB)
    seen = (counts > 0) | np.isin(np.arange(VOCAB), prompt)
    scale = np.where(seen, params.repetition_penalty, 1.0)
    expected = np.where(row > 0, row / scale, row * scale)
    expected -= params.frequency_penalty * counts
    expected -= params.presence_penalty * (counts > 0)
    got = adjusted(params, prompt, output, row)
    # 1e-12: the same float64 terms, two of them added before they are taken off
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_a_history_that_was_walked_and_walked_back_is_the_one_it_was(seed):
    rng = random.Random(seed)
    history = TokenHistory([rng.randrange(VOCAB) for _ in range(250)])
    stack: list[int] = []
    for _ in range(2000):
        if stack and rng.random() < 0.45:
            history.pop(stack.pop())
        else:
            stack.append(rng.randrange(VOCAB))
            history.push(stack[-1])
    while stack:
        history.pop(stack.pop())
    assert history.ids.tolist() == TokenHistory(history.ids.tolist()).ids.tolist()
    assert history.ids.size <= 250
    assert not history.counts.any()


def test_ends_are_forbidden_until_enough_tokens_stand_before_them():
    params = replace(PLAIN, min_tokens=2, end_token_ids=(7, 9), stop_token_ids=(3,))
    processors = Processors(params, [7])
    for expected in ([3, 7, 9], [3, 7, 9], []):
        assert processors.forbidden_ends().tolist() == expected
        processors.push(1)
    processors.pop(1)
    processors.pop(1)
    assert processors.forbidden_ends().tolist() == [3, 7, 9]


def test_ignored_end_tokens_are_tokens_like_others():
    params = replace(PLAIN, end_token_ids=(7,), stop_token_ids=(3,), ignore_eos=True)
    assert ending_ids(params) == {3}


@pytest.mark.parametrize(
    "fields",
    [
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": ((0, 1.0),)},
        {"min_tokens": 1},
    ],
)
def test_a_request_asks_for_processing_by_any_of_its_fields(fields):
    assert not asks_for_processing(PLAIN)
    assert asks_for_processing(replace(PLAIN, **fields))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": ((10, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias"),
        ({"logit_bias": ((1, float("nan")),)}, "logit_bias"),
        ({"logit_bias": ((1, 1.0), (1, 2.0))}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_what_no_row_can_take_is_refused_by_name(fields, named):
    check_processors(PLAIN, 10)
    with pytest.raises(ValueError, match=named):
        check_processors(replace(PLAIN, **fields), 10)
