"""Streams walked by the engine's own choice between sources."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dvi.config import DecodingConfig, DviConfig
from dvi.study.rounds import Counts, count_letters
from dvi.study.simulate import Guess
from dvi.study.sources import Setup, serve_all
from dvi.types import FinishReason, SamplingParams, Trace

ANSWERS, LENGTH = 80, 48


class NoText:
    """A detokenizer of nothing."""

    def __init__(self, *, skip_special_tokens: bool = True) -> None:
        pass

    def push(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def form(rng: random.Random) -> list[int]:
    """A text of 48 tokens of which every eighth is drawn anew for each answer."""
    return [1000 + rng.randrange(100) if i % 8 == 5 else i for i in range(LENGTH)]


def stream(right: float, rng: random.Random) -> list[tuple[Trace, Guess]]:
    """Answers of one form, and a draft that is right with one probability at every position."""
    made = []
    for number in range(ANSWERS):
        output = tuple(form(rng))
        arrays = (
            np.zeros((LENGTH, 1), np.int32),
            np.zeros((LENGTH, 1), np.float32),
            np.zeros(LENGTH, np.float32),
        )
        trace = Trace(
            f"r{number}",
            (2000, 2001),
            output,
            SamplingParams(max_tokens=LENGTH, temperature=0.0),
            FinishReason.LENGTH,
            "",
            *arrays,
            (),
        )
        ids = [token if rng.random() < right else -1 for token in output]
        made.append((trace, Guess(ids, [-0.5] * LENGTH, 1, None)))
    return made


@pytest.mark.parametrize(("right", "gain"), [(0.0, -0.01), (0.5, 0.02), (0.65, 0.02), (1.0, -0.01)])
def test_auto_loses_next_to_nothing_and_gains_where_sources_err_apart(
    right: float, gain: float
) -> None:
    """The draft's misses here have nothing to do with what the memory misses."""
    config = DviConfig(decoding=DecodingConfig(adaptive=False))
    totals: dict[str, Counts] = {}
    for walks in serve_all(Setup(config, NoText), stream(right, random.Random(3))):
        for name, text in walks.items():
            totals[name] = totals.get(name, Counts()) + count_letters(text)
    rates = {name: found.rate for name, found in totals.items()}
    print(right, rates)
    assert rates["neural"] == pytest.approx(right, abs=0.03)
    assert 0.6 < rates["memory"] < 0.9  # either source is the better one in some case
    assert rates["auto"] >= max(rates["neural"], rates["memory"]) + gain
