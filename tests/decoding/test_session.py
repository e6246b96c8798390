"""A round is cut at the right token, in text, ids, counts and record alike (invariant 9)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit, Verdict
from dvi.drafting import Proposal
from dvi.types import DecodeRequest, FinishReason, SamplingParams, Source
from tests.decoding.engines import TEXTS, LetterDecoder

VOCAB = 64
PROMPT = (1, 2, 3)


def open_session(max_context_len: int = 100, **sampling: object) -> Session:
    params = SamplingParams(**{"max_tokens": 50, "temperature": 0.0, **sampling})
    return Session(DecodeRequest("r", PROMPT, params), 0, max_context_len, LetterDecoder())


def rule_on(proposed: Sequence[int], chosen: Sequence[int], version: int = 7) -> Verdict:
    """The verdict when the target chooses ``chosen`` after the proposals it agrees with."""
    num_accepted = 0
    while num_accepted < len(proposed) and proposed[num_accepted] == chosen[num_accepted]:
        num_accepted += 1
    source = Source.NEURAL if proposed else Source.TARGET
    proposal = Proposal(tuple(proposed), (-0.5,) * len(proposed), source, version)
    committed = tuple(chosen[: num_accepted + 1])
    return Verdict(proposal, num_accepted, committed, torch.zeros(num_accepted + 1, VOCAB))


def check_counts(session: Session, commits: Sequence[Commit]) -> None:
    """Identities that every request keeps at every moment."""
    counts = session.counts
    assert session.num_generated == counts.rounds + counts.accepted
    assert session.num_generated == sum(len(commit.delta.token_ids) for commit in commits)
    for commit in commits:
        delta, round_ = commit.delta, commit.round
        assert len(delta.token_ids) == round_.num_accepted + 1 == len(delta.sources)
        assert round_.num_accepted <= len(round_.proposed_ids) <= round_.num_accepted + 1
        assert delta.sources[-1] is Source.TARGET


BLOCK = (10, 11, 12, 13, 14)


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("rule", ["end", "stop_id", "string", "limit", "context"])
def test_a_request_ends_at_any_token_of_an_accepted_block(rule, position):
    token = BLOCK[position]
    fields = {
        "end": {"end_token_ids": (0, token)},
        "stop_id": {"stop_token_ids": (token,)},
        "string": {"stop": ("#", TEXTS[token])},
        "limit": {"max_tokens": position + 1},
        "context": {"max_context_len": len(PROMPT) + position + 1},
    }[rule]
    session = open_session(**fields)
    commit = session.commit(rule_on(BLOCK[:4], BLOCK))
    limit = rule in ("limit", "context")
    assert session.finish_reason is (FinishReason.LENGTH if limit else FinishReason.STOP)
    assert commit.delta.finish_reason is session.finish_reason
    assert commit.delta.token_ids == BLOCK[: position + 1]
    letters = [TEXTS[one] for one in BLOCK[: position + limit]]
    assert commit.delta.text == "".join(letters)
    assert session.tokens == [*PROMPT, *BLOCK[: position + 1]]
    # A perfect draft stays perfect: nothing is judged beyond what was accepted.
    assert (session.counts.proposed, session.counts.judged, session.counts.accepted) == (
        (position,) * 3
    )
    assert commit.round.proposed_ids == BLOCK[:position]
    assert commit.num_proposed == position
    assert commit.delta.sources == (Source.NEURAL,) * position + (Source.TARGET,)
    check_counts(session, [commit])


def test_a_reject_at_the_last_kept_token_is_judged_and_nothing_after_it_is_counted():
    session = open_session(end_token_ids=(40,))
    commit = session.commit(rule_on((10, 11, 12, 13), (10, 40, 0, 0, 0)))
    assert commit.delta.token_ids == (10, 40)
    assert (session.counts.proposed, session.counts.judged, session.counts.accepted) == (2, 2, 1)
    assert commit.round.proposed_ids == (10, 11)


def test_an_uncut_round_counts_all_proposals_and_judges_up_to_the_first_reject():
    session = open_session()
    commits = [
        session.commit(rule_on((10, 11, 12, 13), (10, 9, 0, 0, 0))),
        session.commit(rule_on((10, 11), (10, 11, 12))),
        session.commit(rule_on((), (5,))),
    ]
    counts = session.counts
    assert (counts.rounds, counts.proposed, counts.judged, counts.accepted) == (3, 6, 4, 3)
    assert session.tokens == [*PROMPT, 10, 9, 10, 11, 12, 5]
    assert counts.by_source[Source.NEURAL].rounds == 2
    assert session.num_cached == len(session.tokens) - 1
    check_counts(session, commits)


def test_a_round_cut_at_its_first_token_has_no_source():
    session = open_session(end_token_ids=(10,))
    commit = session.commit(rule_on((10, 11), (10, 11, 12)))
    assert (commit.round.source, commit.round.proposed_ids) == (Source.TARGET, ())
    assert commit.round.draft_logprobs == ()
    assert session.counts.by_source == {}


def test_end_tokens_are_text_like_any_other_with_ignore_eos():
    session = open_session(end_token_ids=(10,), ignore_eos=True)
    commit = session.commit(rule_on((), (10,)))
    assert commit.delta.finish_reason is None
    assert commit.delta.text == TEXTS[10]


def test_stop_ids_and_stop_strings_are_shown_on_request():
    session = open_session(stop_token_ids=(11,), include_stop_str_in_output=True)
    assert session.commit(rule_on((10,), (10, 11))).delta.text == TEXTS[10] + TEXTS[11]
    session = open_session(stop=("ll",), include_stop_str_in_output=True)
    assert session.commit(rule_on((10,), (10, 11))).delta.text == "kkll"


def test_a_stop_string_that_spans_rounds_is_held_back_and_then_cut():
    # k k | l l l | m
    session = open_session(stop=("kll",))
    first = session.commit(rule_on((), (10,)))
    assert first.delta.text == "k"
    second = session.commit(rule_on((11,), (11, 12)))
    assert (second.delta.text, second.delta.token_ids) == ("", (11,))
    assert second.delta.finish_reason is FinishReason.STOP


def test_held_text_and_half_characters_are_shown_when_a_limit_ends_the_answer():
    session = open_session(stop=("kx",), max_tokens=2)
    first = session.commit(rule_on((), (10,)))
    last = session.commit(rule_on((), (60,)))
    assert (first.delta.text, last.delta.text) == ("k", "k?")


def test_proposals_never_reach_past_a_limit():
    session = open_session(max_tokens=3)
    assert session.max_proposals == 2
    session.commit(rule_on((), (10,)))
    assert session.max_proposals == 1
    session.commit(rule_on((), (10,)))
    assert session.max_proposals == 0
    assert open_session(max_context_len=len(PROMPT) + 4).max_proposals == 3


def test_adapter_versions_are_the_first_and_last_that_drafted():
    session = open_session()
    session.commit(rule_on((), (10,), version=1))
    for version in (3, 4, 5):
        commit = session.commit(rule_on((10,), (9, 9), version))
    assert commit.delta.adapter_versions == (3, 5)
    commit = session.commit(rule_on((), (10,), version=8))
    assert commit.delta.adapter_versions == (3, 5)


def test_a_cancelled_request_shows_no_held_text():
    session = open_session(stop=("kx",))
    session.commit(rule_on((), (10,)))
    delta = session.end(FinishReason.CANCELLED)
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("", (), FinishReason.CANCELLED)
    assert delta.counts is session.counts
