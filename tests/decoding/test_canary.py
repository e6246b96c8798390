"""Two versions that draft by turns: shares are kept, arms are alike, answers do not move."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dvi.config import DecodingConfig
from dvi.decoding import AdapterSlot, Controller, Pair, decode_batch
from dvi.decoding.plans import Offers
from dvi.drafting import DRAFTERS, DraftWeights, draft_branch
from dvi.drift import FirstCounts, Turn
from dvi.types import Source
from tests.decoding.engines import Rig, Ticks, make_request, make_rig, reference_tokens
from tests.decoding.profiles import LINEAR, profile
from tests.decoding.test_controller import NOTHING, World, run_round, session
from tests.drafting.rows import (
    Bench,
    config_for,
    make_adapter,
    make_bench,
    one_shot_logits,
    random_tensors,
)
from tests.rigs import build_target


class Shelf:
    """A drafter as far as a slot sees it."""

    def __init__(self) -> None:
        self.adapter_version = 1
        self.breaks: int | None = None

    def load(self, weights: DraftWeights) -> None:
        if weights.adapter_version == self.breaks:
            raise AssertionError("not my kind")
        self.adapter_version = weights.adapter_version


def slot_with_pair(share: float) -> tuple[AdapterSlot, Shelf]:
    shelf = Shelf()
    slot = AdapterSlot(shelf, Ticks())
    slot.stage(Pair(DraftWeights(2), DraftWeights(1), share))
    assert not slot.swap_if_staged()
    return slot, shelf


@pytest.mark.parametrize("share", [0.02, 0.1, 0.125, 1 / 3, 0.5])
@pytest.mark.parametrize("most", [1, 4, 16])
def test_at_no_moment_has_a_canary_drafted_more_than_its_share(share: float, most: int) -> None:
    slot, shelf = slot_with_pair(share)
    rng = random.Random(most)
    done = {Turn.ALONE: 0, Turn.CANARY: 0, Turn.CONTROL: 0}
    for _ in range(4000):
        num_rounds = rng.randint(0, most)
        turn = slot.take_turn(num_rounds)
        assert shelf.adapter_version == (2 if turn is Turn.CANARY else 1) or not num_rounds
        done[turn] += num_rounds
        assert done[Turn.CANARY] <= share * sum(done.values()) + 1e-9
    assert done[Turn.CANARY] > share * sum(done.values()) - most - 1  # and it gets its share
    assert slot.canary_rounds == done[Turn.CANARY]
    wanted = min(2 * done[Turn.CANARY], sum(done.values()) - done[Turn.CANARY])
    assert done[Turn.CONTROL] == pytest.approx(wanted, abs=3 * most)


def test_a_step_of_prompts_alone_is_nobodys_turn() -> None:
    slot, _ = slot_with_pair(0.5)
    assert [slot.take_turn(n) for n in (1, 0, 1, 0, 1)] == [
        Turn.ALONE,
        Turn.ALONE,
        Turn.CANARY,
        Turn.ALONE,
        Turn.CONTROL,
    ]


def test_the_version_in_charge_is_told_while_the_canary_drafts() -> None:
    slot, shelf = slot_with_pair(0.5)
    slot.take_turn(1)
    assert slot.take_turn(1) is Turn.CANARY
    assert (shelf.adapter_version, slot.adapter_version, slot.canary_version) == (2, 1, 2)


@pytest.mark.parametrize(("winner", "swapped"), [(2, 1), (1, 0)])
def test_a_trials_end_is_an_exchange_only_where_the_canary_takes_over(
    winner: int, swapped: int
) -> None:
    slot, shelf = slot_with_pair(0.5)
    for _ in range(4):
        slot.take_turn(1)
    slot.stage(DraftWeights(winner))
    assert slot.swap_if_staged()
    assert [slot.take_turn(1) for _ in range(8)] == [Turn.ALONE] * 8
    assert (shelf.adapter_version, slot.adapter_version) == (winner, winner)
    assert slot.canary_version is None
    assert slot.counts() == {"swapped": swapped, "refused": 0}


def test_a_canary_that_cannot_be_loaded_ends_the_trial_and_is_counted() -> None:
    slot, shelf = slot_with_pair(0.5)
    shelf.breaks = 2
    assert [slot.take_turn(1) for _ in range(6)] == [Turn.ALONE] * 6
    assert (shelf.adapter_version, slot.adapter_version) == (1, 1)
    assert [slot.is_broken(version) for version in (1, 2)] == [False, True]
    assert slot.counts() == {"swapped": 0, "refused": 1}


def test_a_version_in_charge_that_cannot_be_loaded_is_the_one_that_is_blamed() -> None:
    slot, shelf = slot_with_pair(0.5)
    shelf.breaks = 1
    assert [slot.take_turn(1) for _ in range(6)] == [Turn.ALONE] * 6
    assert [slot.is_broken(version) for version in (1, 2)] == [True, False]
    assert slot.counts() == {"swapped": 0, "refused": 1}
    shelf.breaks = None
    slot.stage(DraftWeights(1))
    slot.swap_if_staged()
    assert not slot.is_broken(1)


def stage_pair(rig: Rig, kind: str, scales: dict[int, float], share: float) -> Bench:
    """Random versions of these numbers and scales; the first is in charge."""
    target = rig.engine.parts.target
    layout = draft_branch(config_for(kind, target), target).layout
    base, canary = (
        rig.drafter.prepare(make_adapter(layout, random_tensors(layout, n, scale), version=n))
        for n, scale in scales.items()
    )
    rig.slot.stage(base)
    rig.slot.swap_if_staged()
    rig.slot.stage(Pair(canary, base, share))
    rig.engine.parts.live.trial.open(canary.adapter_version, base.adapter_version)
    return make_bench("block" if kind == "auto" else kind, target)


TURN_TAKERS = [name for name, kind in DRAFTERS.items() if kind.takes_turns]


@pytest.mark.parametrize("kind", TURN_TAKERS)
def test_turns_change_no_answer_and_every_round_names_the_weights_that_drafted_it(
    kind: str,
) -> None:
    """The log-probability of each first proposal is that of the version the trace names, over the
    whole text at once. So what a drafter keeps of a position is the same under both versions.
    """
    target = build_target("tiny-mix", seed=1)
    rig = make_rig(target, kind, draft_len=3)
    bench = stage_pair(rig, kind, {5: 0.5, 6: 1.0}, share=1 / 3)
    requests = [
        make_request(f"r{i}", (1, 2 + i, 3), max_tokens=24, temperature=0.7 * (i % 2), seed=i)
        for i in range(3)
    ]
    for result, request in zip(decode_batch(rig.engine, requests), requests, strict=True):
        assert result.token_ids == reference_tokens(target, request)
    logits = {
        (trace.request_id, n): one_shot_logits(
            bench,
            random_tensors(bench.branch.layout, n, scale),
            [*trace.prompt_ids, *trace.output_ids],
        ).log_softmax(-1)
        for trace in rig.traces
        for n, scale in ((5, 0.5), (6, 1.0))
    }
    seen: dict[int, int] = {5: 0, 6: 0}
    for trace in rig.traces:
        position = len(trace.prompt_ids) - 1
        for one in trace.rounds:
            if one.source is Source.NEURAL:
                expected = logits[trace.request_id, one.adapter_version][position]
                # float64 rig: only the order of additions differs
                assert one.draft_logprobs[0] == pytest.approx(
                    float(expected[one.proposed_ids[0]]), abs=1e-6
                )
                seen[one.adapter_version] += 1
            position += one.num_accepted + 1
    assert seen[5] > seen[6] > 0


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_an_answer_is_the_same_whatever_the_canary(scale: float) -> None:
    target = build_target("tiny-mix", seed=2)
    rig = make_rig(target, "block")
    stage_pair(rig, "block", {1: 0.1, 2: scale}, share=0.5)
    requests = [make_request(f"r{i}", (1, i), max_tokens=20) for i in range(4)]
    for result, request in zip(decode_batch(rig.engine, requests), requests, strict=True):
        assert result.token_ids == reference_tokens(target, request)
    found = rig.engine.parts.live.trial.read()
    assert sum(one.tried for one in found.canary.values()) >= 8
    assert rig.engine.stats().adapter_version == 1


def test_a_drafter_that_fails_under_the_canary_is_the_canarys_fault() -> None:
    target = build_target("tiny-mix", seed=2)
    rig = make_rig(target, "block")
    stage_pair(rig, "block", {1: 0.1, 2: 1.0}, share=0.5)
    propose = rig.drafter.propose

    def failing(requests, cache):  # type: ignore[no-untyped-def]
        if rig.drafter.adapter_version == 2:
            raise RuntimeError("planted")
        return propose(requests, cache)

    rig.drafter.propose = failing  # type: ignore[method-assign]
    request = make_request("r", (1, 2), max_tokens=20)
    (result,) = decode_batch(rig.engine, [request])
    assert result.token_ids == reference_tokens(target, request)
    found = rig.engine.parts.live.trial.read()
    assert (found.canary_faults, found.control_faults) == (1, 0)


CONFIG = DecodingConfig(max_draft_len=8, draft_len=4, probe_interval_rounds=16)


def test_a_canarys_outcomes_leave_the_estimates_alone() -> None:
    """Lengths follow the version in charge, whatever another reaches on its turns."""
    controllers = [Controller(CONFIG, profile()) for _ in range(2)]
    one, rng = [session()], random.Random(0)
    good = World(neural=0.8, version=1)
    for _ in range(100):
        for controller in controllers:
            run_round(controller, one, good, random.Random(rng.random()))
    before = [one.expected_acceptance(Source.NEURAL) for one in controllers]

    class Canary(World):
        def offers(self, num_sessions: int) -> Offers:
            return replace(super().offers(num_sessions), turn=Turn.CANARY)

    for _ in range(50):
        run_round(controllers[0], one, Canary(neural=0.0, version=2), rng)
    after = [one.expected_acceptance(Source.NEURAL) for one in controllers]
    assert after == before


@pytest.mark.parametrize("turn", [Turn.CANARY, Turn.CONTROL])
@pytest.mark.parametrize("batch", [1, 4])
def test_on_both_arms_turns_somebody_drafts_even_where_it_does_not_pay(
    turn: Turn, batch: int
) -> None:
    controller = Controller(CONFIG, LINEAR)
    sessions = [session(row) for row in range(batch)]
    for _ in range(60):  # whatever the estimates have come to
        run_round(controller, sessions, World(neural=0.0), random.Random(0))
    offers = replace(World(neural=0.0).offers(batch), turn=turn)
    chosen = set()
    for _ in range(2 * batch):
        plans = controller.plan(sessions, offers)
        drafting = [i for i, plan in enumerate(plans) if plan.source is Source.NEURAL]
        assert drafting
        chosen |= set(drafting)
    assert chosen == set(range(batch))  # in turns


def test_a_first_proposal_of_an_arm_is_verified_whatever_the_draft_thinks_of_it() -> None:
    controller = Controller(CONFIG, profile())
    one = [session()]
    for _ in range(100):
        run_round(controller, one, World(neural=0.9, logprob=-0.1), random.Random(0))
    for turn, kept in ((Turn.CONTROL, 1), (Turn.CANARY, 1), (Turn.ALONE, 0)):
        (plan,) = controller.plan(one, replace(World(neural=0.9).offers(1), turn=turn))
        assert plan.drafting is not None
        plan.drafting.fit = 0.0  # nothing is expected of what follows
        plan.drafting.goes_on(0, -9.0)
        assert plan.drafting.num_kept() == kept


def test_without_a_draft_a_turn_asks_for_none() -> None:
    offers = Offers([NOTHING], can_draft=False, turn=Turn.CANARY)
    (plan,) = Controller(CONFIG, profile()).plan([session()], offers)
    assert plan.length == 0


def test_counts_of_an_arm_are_what_the_traces_say() -> None:
    rig = make_rig(build_target("tiny-mix", seed=3), "block", draft_len=2)
    stage_pair(rig, "block", {1: 0.1, 2: 1.0}, share=0.25)
    decode_batch(rig.engine, [make_request(f"r{i}", (1, i), max_tokens=50) for i in range(4)])
    rounds = [one for trace in rig.traces for one in trace.rounds if one.adapter_version == 2]
    drafted = [one for one in rounds if one.proposed_ids]
    hits = sum(one.num_accepted > 0 for one in drafted)
    (found,) = rig.engine.parts.live.trial.read().canary.values()
    assert found == FirstCounts(len(drafted), hits)
    total = sum(len(trace.rounds) for trace in rig.traces)
    assert 0 < rig.slot.canary_rounds <= 0.25 * total
