"""The gap between two tokens at a place of an answer, against a dense reference."""

from __future__ import annotations

import numpy as np
import pytest

from dvi.decoding.gap import choice_gap
from dvi.sampling.choice import ChoicePoint, point_noise
from dvi.types import DecodeRequest, SamplingParams
from tests.decoding.plainly import next_logits, raw_logits
from tests.rigs import build_target


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.4},
        {"temperature": 0.0, "logit_bias": ((3, 9.0),)},
        {"temperature": 0.9, "seed": 11, "presence_penalty": 1.1},
    ],
)
def test_the_gap_is_the_difference_of_processed_scores(fields: dict[str, object]) -> None:
    target = build_target()
    prompt, output = (5, 9, 13, 5), (7, 9, 20)
    params = SamplingParams(max_tokens=9, **fields)
    row = next_logits(
        raw_logits(target, [*prompt, *output])[-1], params, list(prompt), list(output)
    )
    assert row is not None
    scores = row.numpy().astype(np.float64)
    place = ChoicePoint(params, len(prompt) + len(output))
    scores = scores + params.temperature * point_noise(place, np.arange(scores.size))
    first, second, third = (int(i) for i in scores.argsort()[::-1][:3])
    request = DecodeRequest("r", prompt, params)
    gap = choice_gap(target, None, request, output, (first, second))
    # One forward and one reference pass of the same float64 model: rounding only.
    assert gap == pytest.approx(scores[first] - scores[second], abs=1e-9)
    assert choice_gap(target, None, request, output, (third, first)) == pytest.approx(
        scores[first] - scores[third], abs=1e-9
    )


def test_a_token_that_cannot_stand_there_is_infinitely_far() -> None:
    target = build_target()
    params = SamplingParams(max_tokens=9, temperature=0.0, min_tokens=5, end_token_ids=(2,))
    request = DecodeRequest("r", (5, 9, 13), params)
    assert choice_gap(target, None, request, (7,), (2, 8)) == float("inf")
