"""Who may start from whose prompt, and which row is given away for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from dvi.decoding import decode_batch
from dvi.decoding.limits import EngineLimits
from dvi.decoding.rows import shared_len
from tests.decoding.engines import (
    LIMITS,
    Received,
    Rig,
    ScriptedDrafter,
    make_request,
    make_rig,
    real_drafter,
    reference_tokens,
)
from tests.drafting.rows import random_prompt
from tests.rigs import build_target

TARGET = build_target("tiny-mix", seed=20)
PROMPT = random_prompt(1, 40, 64)
TWO_ROWS = EngineLimits(num_rows=2, max_queue=9, max_context_len=160, max_draft_len=8, top_ids=4)


def num_reused(rig: Rig, prompt: Sequence[int], name: str = "r", **changes: object) -> int:
    """Answer one request; how many prompt tokens were spared."""
    request = replace(make_request(name, prompt, max_tokens=3), **changes)
    (result,) = decode_batch(rig.engine, [request])
    assert result.token_ids == reference_tokens(TARGET, request)
    return result.num_reused


@pytest.mark.parametrize(
    ("prefix_scope", "same_user", "other_user"),
    [(None, 39, 0), ("user", 39, 0), ("global", 39, 39), ("request", 0, 0), ("off", 0, 0)],
)
def test_a_prefix_is_shared_inside_its_scope_only(prefix_scope, same_user, other_user):
    for second, spared in (("alice", same_user), ("bob", other_user)):
        rig = make_rig(TARGET, "block", prefix_scope=prefix_scope)
        assert num_reused(rig, PROMPT, scope="alice") == 0
        assert num_reused(rig, PROMPT, scope=second) == spared
        assert rig.engine.stats().reused_tokens == spared


def test_a_running_prompt_of_another_scope_is_neither_copied_nor_waited_for():
    rig = make_rig(TARGET, "none")
    for name in ("alice", "bob"):
        request = make_request(name, PROMPT[:8])
        rig.engine.submit(replace(request, scope=name), Received())
    assert rig.engine.step().num_prefill_tokens == 14  # both, side by side
    while rig.engine.step().worked:
        pass
    assert rig.engine.stats().reused_tokens == 0


def test_a_request_that_is_not_logged_reads_but_is_not_kept_for_others():
    rig = make_rig(TARGET, "block")
    assert num_reused(rig, PROMPT, log=False) == 0
    assert num_reused(rig, PROMPT, log=False) == 0  # not even for the same name again
    assert num_reused(rig, PROMPT, log=True) == 0
    assert num_reused(rig, PROMPT, log=False) == 39


def test_choices_share_with_each_other_alone_in_the_scope_of_a_request():
    rig = make_rig(TARGET, "none", prefix_scope="request")
    base = make_request("many", PROMPT, max_tokens=3)
    for _ in range(2):
        pair = [replace(base, sampling=replace(base.sampling, choice_index=i)) for i in range(2)]
        rig.engine.submit_all(pair, Received())
        while rig.engine.step().worked:
            pass
    assert rig.engine.stats().reused_tokens == 2 * 39


def test_the_row_that_was_used_longest_ago_is_given_away():
    rig = make_rig(TARGET, "block", limits=TWO_ROWS)
    first, second, third = (random_prompt(n, 20, 64) for n in (11, 12, 13))
    assert num_reused(rig, first) == 0
    assert num_reused(rig, second) == 0
    assert num_reused(rig, first) == 19  # copied into the second's row
    assert num_reused(rig, third) == 0  # takes the row of the first prompt's first answer
    assert num_reused(rig, first) == 19
    assert num_reused(rig, second) == 0


def test_rows_of_use_to_nobody_are_given_away_first():
    rig = make_rig(TARGET, "block", limits=TWO_ROWS)
    first, second, third = (random_prompt(n, 20, 64) for n in (11, 12, 13))
    assert num_reused(rig, first) == 0
    assert num_reused(rig, second, log=False) == 0
    assert num_reused(rig, third, log=False) == 0
    assert num_reused(rig, first) == 19


def test_a_conversation_goes_on_in_its_own_row():
    rig = make_rig(TARGET, "block", limits=TWO_ROWS)
    other = random_prompt(12, 20, 64)
    assert num_reused(rig, other) == 0
    talk = random_prompt(11, 20, 64)
    for _ in range(3):
        before = len(talk)
        (result,) = decode_batch(rig.engine, [make_request("talk", talk, max_tokens=5)])
        assert result.num_reused == (0 if before == 20 else before - 3)
        # The newest answer's last token was never an input, and two more come from the user.
        talk = [*talk, *result.token_ids, 7, 8]
    assert num_reused(rig, other) == 19


def test_a_private_conversation_leaves_the_shared_row_to_others():
    rig = make_rig(TARGET, "block", limits=TWO_ROWS)
    (result,) = decode_batch(rig.engine, [make_request("open", PROMPT, max_tokens=5)])
    talk = [*PROMPT, *result.token_ids, 7]
    assert num_reused(rig, talk, log=False) == 44
    assert num_reused(rig, talk) == 44


def test_rows_of_a_failed_step_are_not_offered():
    rig = make_rig(TARGET, "block")
    rig.engine.submit(make_request("bad", PROMPT), Received())
    rig.engine.advance()
    verify = rig.engine.verifier.verify

    def fail(batch: object, proposals: object) -> list[object]:
        raise RuntimeError("no")

    rig.engine.verifier.verify = fail
    rig.engine.advance()
    rig.engine.verifier.verify = verify
    assert num_reused(rig, PROMPT) == 0


def test_a_row_with_gaps_in_its_draft_state_is_not_offered():
    drafter = ScriptedDrafter(real_drafter(TARGET, "block", LIMITS), lambda _: (1, 2))
    rig = make_rig(TARGET, drafter)
    observe = drafter.observe

    def fail(hidden: torch.Tensor, plan: object) -> None:
        raise ValueError("blind")

    drafter.observe = fail
    assert num_reused(rig, PROMPT) == 0
    drafter.observe = observe
    assert num_reused(rig, PROMPT) == 0
    assert num_reused(rig, PROMPT) == 39


def test_a_copy_that_fails_costs_no_answer():
    drafter = ScriptedDrafter(real_drafter(TARGET, "block", LIMITS), lambda _: (1, 2))
    rig = make_rig(TARGET, drafter)
    assert num_reused(rig, PROMPT) == 0

    def fail(*spans: int) -> None:
        raise ValueError("no copy")

    drafter.share = fail
    request = make_request("r", PROMPT, max_tokens=9)
    (result,) = decode_batch(rig.engine, [request])
    assert result.token_ids == reference_tokens(TARGET, request)
    assert (result.num_reused, result.counts.proposed) == (39, 0)  # the draft's state is missing
    rig.engine._rows._share = fail
    (result,) = decode_batch(rig.engine, [request])
    assert result.token_ids == reference_tokens(TARGET, request)
    assert result.num_reused == 0


@pytest.mark.parametrize("common", [0, 1, 63, 64, 65, 128, 199, 200])
def test_equal_leading_tokens_are_counted_without_the_last_of_either(common):
    one = [*range(common), *[900] * (200 - common)]
    other = [*range(common), *[901] * (300 - common)]
    assert shared_len(one, other) == shared_len(other, one) == min(common, 199)
    assert shared_len(one, one[:common] or [5]) == max(common - 1, 0)
