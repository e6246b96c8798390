"""Draft lengths follow acceptance and break-even, and repeat exactly (ARCHITECTURE fact 8)."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import Controller, decode_batch
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.types import Delta, Round, Source
from tests.decoding.engines import LetterDecoder, make_request, make_rig
from tests.rigs import build_target

CONFIG = DecodingConfig(draft_len=4, probe_interval_rounds=8)


def session(**fields: object) -> Session:
    request = replace(make_request("r", (1, 2), max_tokens=1000), **fields)
    return Session(request, 0, 5000, LetterDecoder())


def commit(judged: int, accepted: int) -> Commit:
    ids = tuple(range(judged))
    delta = Delta("r", 0, (0,) * (accepted + 1), (Source.TARGET,) * (accepted + 1), "")
    source = Source.NEURAL if judged else Source.TARGET
    return Commit(delta, Round(source, 0, ids, (0.0,) * judged, accepted), judged)


def lengths(controller: Controller, num_rounds: int, judged: int, accepted: int) -> list[int]:
    """K of each round for one session whose drafts fare like this."""
    seen = []
    for _ in range(num_rounds):
        (length,) = controller.draft_lengths([session()])
        seen.append(length)
        controller.learn([commit(judged, accepted) if length else commit(0, 0)])
    return seen


def test_a_draft_below_break_even_is_stopped_and_probed_once_an_interval():
    controller = Controller(CONFIG, break_even=0.5)
    seen = lengths(controller, 200, judged=1, accepted=0)
    assert seen[:16] == [4] * 16  # the benefit of the doubt, sixteen judged tokens long
    assert seen[16:] == ([0] * 7 + [4]) * 23


def test_a_draft_that_became_good_is_used_again():
    controller = Controller(CONFIG, break_even=0.5)
    lengths(controller, 100, judged=1, accepted=0)
    recovered = lengths(controller, 300, judged=4, accepted=4)
    assert recovered[-1] == 4
    first = recovered.index(4)
    assert recovered[first + 8 * 8 :] == [4] * (300 - first - 64)  # some eight probes later


def test_a_draft_above_break_even_is_never_stopped():
    controller = Controller(CONFIG, break_even=0.5)
    assert set(lengths(controller, 300, judged=4, accepted=3)) == {4}


def test_drafting_is_never_stopped_when_not_adaptive():
    controller = Controller(replace(CONFIG, adaptive=False), break_even=float("inf"))
    assert set(lengths(controller, 100, judged=1, accepted=0)) == {4}


def test_probing_rounds_are_counted_for_all_sessions_together():
    controller = Controller(CONFIG, break_even=0.5)
    lengths(controller, 17, judged=1, accepted=0)
    batches = [controller.draft_lengths([session(), session()]) for _ in range(16)]
    assert batches.count([4, 4]) == 2
    assert batches.count([0, 0]) == 14


def test_rounds_in_which_nobody_could_draft_are_no_probes():
    controller = Controller(CONFIG, break_even=0.5)
    lengths(controller, 17, judged=1, accepted=0)
    silent = session(speculation=False)
    for _ in range(50):
        assert controller.draft_lengths([silent]) == [0]
    assert lengths(controller, 8, judged=1, accepted=0) == [0] * 6 + [4, 0]
    assert controller.draft_lengths([]) == []


@pytest.mark.parametrize(("limit", "expected"), [(None, 4), (0, 0), (2, 2), (8, 4)])
def test_requests_may_ask_for_fewer_proposals(limit, expected):
    controller = Controller(CONFIG, break_even=0.0)
    both = controller.draft_lengths([session(max_draft_len=limit), session()])
    assert both == [expected, 4]


def test_the_configured_length_is_bounded_by_the_longest_allowed():
    controller = Controller(replace(CONFIG, draft_len=6, max_draft_len=3), break_even=0.0)
    assert controller.draft_lengths([session()]) == [3]


def test_an_engine_with_a_useless_draft_decodes_plainly_but_for_probes_and_repeats_itself():
    target = build_target("tiny-rand", seed=30)
    request = make_request("r", (1, 2, 3), max_tokens=150, temperature=1.0, seed=1)
    config = DecodingConfig(draft_len=4, probe_interval_rounds=16)
    runs = []
    for _ in range(2):
        rig = make_rig(target, "block", decoding=config, break_even=0.9)
        (result,) = decode_batch(rig.engine, [request])
        runs.append((result, rig.traces[0].rounds))
    assert runs[0] == runs[1]
    (result, rounds) = runs[0]
    drafted = [index for index, one in enumerate(rounds) if one.proposed_ids]
    gaps = [later - earlier for earlier, later in itertools.pairwise(drafted)]
    assert gaps[-3:] == [16, 16, 16]
    assert result.token_ids == decode_batch(make_rig(target, "none").engine, [request])[0].token_ids
