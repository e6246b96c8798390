"""Log-probabilities of tokens: raw, aligned, descending."""

from __future__ import annotations

import math

import pytest
import torch

from dvi.sampling.logprobs import token_logprobs


def test_each_row_gives_its_own_token_and_the_likeliest_in_order():
    probabilities = torch.tensor([[0.5, 0.125, 0.25, 0.125], [0.1, 0.2, 0.3, 0.4]])
    logits = probabilities.log() + torch.tensor([[3.0], [-7.0]])  # a constant changes nothing
    first, second = token_logprobs(logits, [1, 0], 2)
    assert (first.token_id, second.token_id) == (1, 0)
    # 1e-6: float32 logsumexp of values of a few units
    assert first.logprob == pytest.approx(math.log(0.125), abs=1e-6)
    assert [one for one, _ in first.top] == [0, 2]
    assert [value for _, value in first.top] == pytest.approx(
        [math.log(0.5), math.log(0.25)], abs=1e-6
    )
    assert [one for one, _ in second.top] == [3, 2]


def test_no_alternatives_are_asked_for_with_zero():
    (entry,) = token_logprobs(torch.zeros(1, 4), [2], 0)
    assert entry.top == ()
    assert entry.logprob == pytest.approx(-math.log(4), abs=1e-6)


def test_ids_that_do_not_exist_are_no_alternatives():
    logits = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    (entry,) = token_logprobs(logits, [0], 3)
    assert entry.top == ((0, 0.0),)


def test_half_precision_logits_are_widened_first():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    (narrow,) = token_logprobs(logits.bfloat16(), [1], 3)
    (wide,) = token_logprobs(logits, [1], 3)
    assert narrow == wide  # 1, 2 and 3 are exact in bfloat16
