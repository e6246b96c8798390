"""A memory that knows what the target held likely proposes by that, not by what was said once."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dvi.drafting import DraftRequest
from dvi.drafting.base import Context, Match
from dvi.drafting.memory import MemoryDrafter
from dvi.drafting.shares import KEPT_IDS, Row, Shares, mean, shares_of
from dvi.sampling.choice import ChoicePoint, point_noise
from dvi.sampling.noise import Purpose
from dvi.types import SamplingParams
from tests.drafting.test_memory import ask, memory
from tests.replay.fakes import make_trace

Mass = dict[int, float]
HOT = {"temperature": 0.7}


def shares(*tokens: Mass) -> Shares:
    """Of an answer's tokens, each with what was likely there, the likeliest first."""
    ids = np.zeros((len(tokens), KEPT_IDS), np.int32)
    mass = np.zeros((len(tokens), KEPT_IDS), np.float16)
    for row, token in enumerate(tokens):
        ids[row, : len(token)] = list(token)
        mass[row, : len(token)] = list(token.values())
    return Shares(ids, mass)


def remember(drafter: MemoryDrafter, prompt: list[int], *answer: tuple[int, Mass]) -> None:
    """An answer's tokens, each with what was likely there; certain where that is empty."""
    said = [token for token, _ in answer]
    drafter.remember(
        prompt, said, "", shares(*(likely or {token: 1.0} for token, likely in answer))
    )


def drawn(likely: Mass, position: int, seed: int, temperature: float) -> int:
    """The target's own choice at a position where it holds this likely."""
    params = SamplingParams(max_tokens=9, temperature=temperature, seed=seed)
    noise = point_noise(ChoicePoint(params, position), np.array(list(likely), np.int64))
    scores = [math.log(p) + temperature * g for p, g in zip(likely.values(), noise, strict=True)]
    return list(likely)[int(np.argmax(scores))]


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.3])
def test_a_sampled_request_gets_the_targets_draw_from_what_it_held_likely(
    temperature: float,
) -> None:
    drafter, likely = memory(), {30: 0.5, 31: 0.3, 32: 0.2}
    remember(drafter, [1], (2, {}), (30, likely))  # 30 is all that was ever said
    seen = set()
    for seed in range(100):
        (token,) = ask(drafter, [9, 2], 1, temperature=temperature, seed=seed)
        assert token == drawn(likely, 2, seed, temperature)
        seen.add(token)
    assert len(seen) > 1


def test_several_occurrences_are_heard_together() -> None:
    drafter = memory()
    remember(drafter, [1], (2, {}), (30, {30: 0.75, 31: 0.25}))
    remember(drafter, [1], (2, {}), (31, {31: 0.75, 32: 0.25}))
    # At T = 1 the mean of the two; the shares are exact in sixteen bits.
    both = {30: 0.375, 31: 0.5, 32: 0.125}
    for seed in range(60):
        (token,) = ask(drafter, [9, 2], 1, temperature=1.0, seed=seed)
        assert token == drawn(both, 2, seed, 1.0)


def test_filters_of_the_request_hold_for_what_was_likely() -> None:
    drafter, likely = memory(), {30: 0.5, 31: 0.3, 32: 0.2}
    remember(drafter, [1], (2, {}), (32, likely))
    for filters, left in (
        ({"top_k": 1}, {30}),
        ({"top_p": 0.6}, {30, 31}),
        ({"min_p": 0.5}, {30, 31}),
    ):
        seen = {
            ask(drafter, [9, 2], 1, temperature=1.0, seed=seed, **filters)[0] for seed in range(40)
        }
        assert seen == left


def test_a_greedy_request_gets_what_was_said() -> None:
    drafter = memory()
    remember(drafter, [1], (2, {}), (31, {30: 0.6, 31: 0.4}), (5, {}))
    assert ask(drafter, [9, 2]) == (31, 5)


class AnyRules:
    """What a grammar or a bias is to the memory: it cannot know what they leave."""

    def apply(self, row: object) -> bool:
        raise AssertionError(row)

    def advance(self, token_id: int) -> bool:
        raise AssertionError(token_id)


def test_a_request_with_rules_gets_what_was_said_under_them() -> None:
    drafter = memory()
    remember(drafter, [1], (2, {}), (31, {30: 0.9, 31: 0.1}), (5, {}))
    drafter.served.take_in(None)
    for seed in range(20):
        params = SamplingParams(max_tokens=9, temperature=1.0, seed=seed)
        drafter.release(0)
        request = DraftRequest(0, 1, 2, 2, params, Context([9, 2]), rules=AnyRules())
        assert drafter.recall([request])[0].ids == (31, 5)


def test_where_verification_has_noise_of_its_own_the_likeliest_is_proposed() -> None:
    drafter = memory()
    remember(drafter, [1], (2, {}), (31, {30: 0.6, 31: 0.4}))
    drafter.served.take_in(None)
    for seed in range(20):
        params = SamplingParams(max_tokens=9, temperature=1.0, seed=seed)
        context = Context([9, 2])
        request = DraftRequest(0, 1, 2, 1, params, context, purpose=Purpose.PROPOSAL)
        drafter.release(0)
        assert drafter.recall([request])[0].ids == (30,)


def test_a_likely_word_that_nobody_took_is_followed_where_it_stands_elsewhere() -> None:
    drafter = memory()
    remember(drafter, [1], (2, {}), (30, {31: 1.0}), (40, {}))
    remember(drafter, [1], (7, {}), (31, {}), (41, {}), (42, {}))
    assert ask(drafter, [9, 2], 3, **HOT) == (31, 41, 42)


def test_a_copied_word_has_the_share_of_the_one_that_it_stands_for() -> None:
    drafter = memory()
    remember(drafter, [1, 2, 50, 3], (10, {}), (50, {50: 0.5, 70: 0.5}), (12, {}))
    ours = {60: 0.5, 70: 0.5}
    for seed in range(40):
        found = ask(drafter, [1, 2, 60, 3, 10], 1, temperature=1.0, seed=seed)
        assert found == (drawn(ours, 5, seed, 1.0),)


def test_matches_say_how_much_of_the_mass_agrees() -> None:
    drafter = memory()
    for _ in range(2):
        remember(drafter, [1], (2, {}), (30, {30: 0.75, 31: 0.25}))
    drafter.served.take_in(None)
    params = SamplingParams(max_tokens=9, temperature=1.0, top_k=1)
    (proposal,) = drafter.recall([DraftRequest(0, 1, 2, 1, params, Context([9, 2]))])
    assert proposal.matches == (Match(1, 1.5, 2),)


def test_shares_stay_with_their_tokens_when_answers_are_cut_forgotten_and_evicted() -> None:
    drafter = memory(memory_max_tokens=12)
    likely = {token: {token: 0.5, 50 + token: 0.5} for token in range(20, 40)}
    remember(drafter, [1, 2], *likely.items())  # twenty tokens: the last twelve are kept
    for known in range(28, 39):
        for seed in range(10):
            found = ask(drafter, [9, known], 1, temperature=1.0, seed=seed)
            assert found == (drawn(likely[known + 1], 2, seed, 1.0),)
    remember(drafter, [1], (40, {}), (41, {41: 0.5, 45: 0.5}), (42, {}))  # the long one leaves
    drafter.remember([3], [60, 61], "")  # of no known shares
    drafter.forget([3], [60, 61], "")
    remember(drafter, [], (50, {}), (51, {}))
    assert ask(drafter, [9, 30], 1, **HOT) == ()
    for seed in range(10):
        found = ask(drafter, [9, 40], 1, temperature=1.0, seed=seed)
        assert found == (drawn({41: 0.5, 45: 0.5}, 2, seed, 1.0),)


def test_shares_of_a_trace_are_the_targets_own() -> None:
    logits = np.array([[2.0, 1.0, 0.5], [3.0, 3.0, -1.0]], np.float32)
    trace = replace(
        make_trace("r", num_tokens=2),
        top_ids=np.array([[5, 6, 7], [8, 9, 1]], np.int32),
        top_logits=logits,
        logsumexp=np.array([2.5, 4.0], np.float32),
    )
    found = shares_of(trace)
    assert found.ids.shape == found.mass.shape == (2, KEPT_IDS)
    np.testing.assert_allclose(found.mass[:, :3], np.exp(logits - [[2.5], [4.0]]), rtol=1e-3)
    np.testing.assert_array_equal(found.ids[:, :3], trace.top_ids)
    assert not found.mass[:, 3:].any()


def test_a_very_low_temperature_leaves_the_likeliest() -> None:
    row = shares({30: 0.5, 31: 0.375, 32: 0.125})
    found = mean([Row(row.ids[0], row.mass[0])], [(30, 30)], 1e-3)
    assert found[30] == pytest.approx(1.0)
