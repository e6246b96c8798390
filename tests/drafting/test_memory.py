"""What a memory proposes, to whom, and what it no longer knows."""

from __future__ import annotations

import math
import random
import threading
import time

import numpy as np
import pytest

from dvi.config import DrafterConfig
from dvi.drafting import AdapterRefused, DraftRequest
from dvi.drafting.base import Context, Match
from dvi.drafting.memory import MemoryDrafter
from dvi.drafting.served import TAKE_IN_TOKENS
from dvi.sampling.choice import ChoicePoint, point_noise
from dvi.types import SamplingParams, Source


def memory(**changes: object) -> MemoryDrafter:
    return MemoryDrafter(DrafterConfig(kind="memory", **changes))


def ask(
    drafter: MemoryDrafter,
    tokens: list[int],
    draft_len: int = 4,
    *,
    row: int = 0,
    scope: str = "",
    prediction_ids: tuple[int, ...] = (),
    **sampling: object,
) -> tuple[int, ...]:
    """Ids proposed after ``tokens``, on a fresh row."""
    drafter.release(row)
    params = SamplingParams(max_tokens=99, **{"temperature": 0.0, **sampling})
    context = Context(tokens, prediction_ids, scope)
    request = DraftRequest(row, len(tokens) - 1, tokens[-1], draft_len, params, context)
    (proposal,) = drafter.recall([request])
    assert proposal.source is (Source.MEMORY if proposal.ids else Source.TARGET)
    assert len(proposal.matches) == len(proposal.ids)
    assert proposal.logprobs == ()
    return proposal.ids


def test_a_request_is_continued_as_it_went_before():
    assert ask(memory(), [1, 2, 3, 4, 5, 9, 2, 3]) == (4, 5, 9, 2)
    assert ask(memory(), [1, 2, 3]) == ()


def test_a_text_that_repeats_itself_goes_on_repeating():
    assert ask(memory(), [7, 8, 9, 7, 8, 9], 8) == (7, 8, 9, 7, 8, 9, 7, 8)
    assert ask(memory(), [4, 4], 3) == (4, 4, 4)


def test_the_longest_match_wins_over_the_most_frequent_continuation():
    tokens = [2, 50, 2, 50, 2, 50, 1, 2, 60, 9, 1, 2]
    assert ask(memory(), tokens, 1) == (60,)
    assert ask(memory(memory_max_match=1), tokens, 1) == (50,)


def test_of_equal_matches_the_most_frequent_then_the_newest_continuation_wins():
    assert ask(memory(), [1, 5, 1, 6, 1, 6, 1, 5, 1, 6, 1], 1) == (6,)
    assert ask(memory(memory_max_match=1), [1, 5, 1, 6, 1], 1) == (6,)
    assert ask(memory(memory_max_match=1), [1, 6, 1, 5, 1], 1) == (5,)


def test_a_finished_answer_is_proposed_to_the_next_request():
    drafter = memory()
    drafter.remember([1, 2, 3], [40, 41, 42, 43], "")
    assert ask(drafter, [9, 2, 3], 8) == (40, 41, 42, 43)
    assert ask(drafter, [9, 41], 8) == (42, 43)


def test_prompts_that_were_served_are_not_proposed():
    drafter = memory()
    drafter.remember([1, 2, 3, 4], [5, 6], "")
    assert ask(drafter, [9, 1, 2]) == ()


def test_a_proposal_says_what_speaks_for_it():
    drafter = memory()
    for last in (70, 70, 71):
        drafter.remember([1], [2, 3, last, 80], "")
    request = DraftRequest(
        0, 3, 3, 2, SamplingParams(max_tokens=9, temperature=0.0), Context([8, 1, 2, 3])
    )
    (proposal,) = drafter.recall([request])
    assert proposal.ids == (70, 80)
    assert proposal.matches == (Match(3, 2, 3), Match(4, 2, 2))


@pytest.mark.parametrize(
    ("memory_scope", "reader", "knows"),
    [
        (None, "alice", True),
        (None, "bob", False),
        (None, "", False),
        ("user", "alice", True),
        ("user", "bob", False),
        ("global", "bob", True),
        ("request", "alice", False),
        ("off", "alice", False),
    ],
)
def test_text_of_one_scope_is_never_proposed_to_another(memory_scope, reader, knows):
    drafter = memory(memory_scope=memory_scope)
    drafter.remember([1, 2], [30, 31, 32], "alice")
    assert bool(ask(drafter, [5, 30], scope=reader)) is knows
    own = ask(drafter, [6, 7, 6], 1, scope=reader)
    assert own == (() if memory_scope == "off" else (7,))


def test_scopes_stay_apart_under_random_traffic():
    rng = random.Random(5)
    drafter = memory(memory_max_tokens=400)
    alphabets = {"a": range(0, 20), "b": range(100, 120), "": range(200, 220)}
    for _ in range(300):
        scope = rng.choice(list(alphabets))
        ids = [rng.choice(alphabets[scope]) for _ in range(rng.randint(2, 30))]
        drafter.remember(ids[:3], ids[3:], scope)
        reader = rng.choice(list(alphabets))
        # The reader's text holds ids of every alphabet; what it gets must be its own scope's.
        tokens = [rng.choice(alphabets[one]) for one in alphabets for _ in range(2)]
        rng.shuffle(tokens)
        proposed = ask(drafter, tokens, 6, scope=reader)
        assert set(proposed) <= set(alphabets[reader]) | set(tokens)


def test_a_prediction_is_known_to_its_own_request_only():
    drafter = memory()
    assert ask(drafter, [1, 2], 8, prediction_ids=(50, 51, 52)) == (50, 51, 52)
    assert ask(drafter, [1, 3, 51], 8, row=1) == ()  # another request, while the first one runs
    tokens = [1, 2, 77, 51]
    params = SamplingParams(max_tokens=99, temperature=0.0)
    context = Context(tokens, (50, 51, 52))
    (proposal,) = drafter.recall([DraftRequest(0, 3, 51, 8, params, context)])
    assert proposal.ids == (52,)  # the answer left the prediction and came back to it
    drafter.release(0)
    assert ask(drafter, [1, 2, 51], 8) == ()


def test_a_row_is_forgotten_with_its_request_and_follows_its_tokens_otherwise():
    drafter = memory()
    tokens = [1, 2, 3]
    params = SamplingParams(max_tokens=9, temperature=0.0)

    def next_ids() -> tuple[int, ...]:
        request = DraftRequest(2, len(tokens) - 1, tokens[-1], 2, params, Context(tokens))
        return drafter.recall([request])[0].ids

    assert next_ids() == ()
    tokens += [4, 1]
    assert next_ids() == (2, 3)
    drafter.release(2)
    tokens[:] = [1]
    assert next_ids() == ()


def test_memory_is_bounded_and_the_oldest_answers_leave_first():
    drafter = memory(memory_max_tokens=100)
    for number in range(200):
        drafter.remember([], list(range(10 * number, 10 * number + 10)), "s")
        drafter.served.take_in(None)
        assert drafter.served.num_tokens <= 100
        assert drafter.served.num_documents <= 10
    assert ask(drafter, [1995], 1, scope="s") == (1996,)
    assert ask(drafter, [1905], 1, scope="s") == (1906,)
    assert ask(drafter, [1895], 1, scope="s") == ()
    drafter.remember([], list(range(5000, 6000)), "s")
    drafter.served.take_in(None)
    assert drafter.served.num_tokens == 100
    assert ask(drafter, [5950], 1, scope="s") == (5951,)
    assert ask(drafter, [5850], 1, scope="s") == ()


def test_the_budget_is_of_all_scopes_together_and_empty_scopes_vanish():
    drafter = memory(memory_max_tokens=60)
    for number in range(40):
        drafter.remember([], [number] * 20, f"scope {number}")
    drafter.served.take_in(None)
    assert drafter.served.num_tokens == 60
    left = [n for n in range(40) if drafter.served.text(f"scope {n}") is not None]
    assert left == [37, 38, 39]


def test_a_forgotten_answer_is_not_proposed_any_more():
    drafter = memory()
    prompt, answer = [1, 2], [30, 31, 32, 33]
    for _ in range(3):
        drafter.remember(prompt, answer, "u")
    drafter.remember(prompt, answer, "v")
    drafter.remember([3], [30, 31, 99], "u")
    drafter.forget(prompt, answer, "u")
    assert ask(drafter, [8, 31], scope="u") == (99,)
    assert ask(drafter, [8, 31], scope="v") == (32, 33)
    drafter.forget([3], [30, 31, 99], "u")
    assert ask(drafter, [8, 31], scope="u") == ()
    assert drafter.served.num_documents == 1


def test_sampled_requests_get_the_arg_max_of_log_count_and_the_positions_own_noise():
    drafter = memory()
    counts = {30: 5, 31: 2, 32: 1}
    for token, count in counts.items():
        for _ in range(count):
            drafter.remember([1], [2, token], "")
    drafter.served.take_in(None)
    seen = []
    for seed in range(400):
        sampling = {"temperature": 0.7, "seed": seed}
        (token,) = ask(drafter, [9, 2], 1, **sampling)
        params = SamplingParams(max_tokens=99, **sampling)
        ids = np.array(list(counts), dtype=np.int64)
        noise = point_noise(ChoicePoint(params, 2), ids)
        scores = [0.7 * (math.log(counts[i]) + g) for i, g in zip(counts, noise, strict=True)]
        assert token == list(counts)[int(np.argmax(scores))]
        seen.append(token)
    # Gumbel noise on log counts draws by share: 5/8 within four standard deviations of .024.
    assert seen.count(30) / 400 == pytest.approx(5 / 8, abs=0.1)


def test_answers_may_be_remembered_from_any_thread():
    drafter = memory(memory_max_tokens=5000)
    stop = threading.Event()

    def serve(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            drafter.remember([number], [rng.randrange(50) for _ in range(20)], "")
            time.sleep(1e-4)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        ask(drafter, [1, 2, 3], 4)
        time.sleep(1e-4)
    stop.set()
    for thread in threads:
        thread.join()
    drafter.served.take_in(None)
    assert 4900 < drafter.served.num_tokens <= 5000


def test_a_long_history_is_taken_in_over_several_rounds():
    drafter = memory()
    for number in range(20):
        drafter.remember([], [number] * TAKE_IN_TOKENS, "")
    ask(drafter, [999], 1)
    assert drafter.served.num_documents == 1
    for _ in range(19):
        ask(drafter, [999], 1)
    assert drafter.served.num_documents == 20


def test_a_memory_takes_no_adapter_and_lengths_must_fit():
    drafter = memory()
    assert drafter.prepare(None).adapter_version == 0
    with pytest.raises(AdapterRefused, match="drafter=memory takes no adapter"):
        drafter.prepare(type("A", (), {"version": 3})())


def test_a_cleared_memory_knows_nothing_that_came_before_and_learns_what_comes_after():
    drafter = memory()
    drafter.remember((1, 2), (3, 4, 5), "")
    assert ask(drafter, [2, 3]) == (4, 5)
    drafter.remember((1, 2), (6, 7, 8), "")  # still in line
    drafter.served.clear()
    assert ask(drafter, [2, 3]) == ask(drafter, [2, 6]) == ()
    assert (drafter.served.num_documents, drafter.served.num_tokens) == (0, 0)
    drafter.remember((1, 2), (9, 10, 11), "")
    assert ask(drafter, [2, 9]) == (10, 11)
