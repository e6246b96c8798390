"""Whether training pays: what it saves, what it takes, and what the trainer does about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from dvi.replay import StoredTrace
from dvi.types import Round, Source, Trace
from tests.trainers.conftest import WorldMaker
from tests.trainers.processes import make_model, make_service_world
from tests.trainers.test_follow import Loop
from tests.trainers.world import tiny_config
from trainers.background import make_payback, serve_training
from trainers.control import Control, Pace
from trainers.follow import Follower
from trainers.gate import accepted_length
from trainers.judge import Judge, Judgement
from trainers.payback import LEAST_SHARE, SMOOTHING, SPAN, Payback, saved_share
from trainers.process import IDLE_CLASS
from trainers.scoring import Score
from trainers.status import read_status


class Cpu:
    """A clock that the test moves."""

    def __init__(self, per_look_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.per_look_s = per_look_s

    def __call__(self) -> float:
        self.now_s += self.per_look_s
        return self.now_s


def with_rounds(trace: Trace, *rounds: tuple[Source, int]) -> Trace:
    made = [Round(source, 0, (1,) * (accepted + 1), (), accepted) for source, accepted in rounds]
    return replace(trace, rounds=tuple(made))


def test_what_is_saved_are_rounds_in_which_the_memory_does_not_propose(traces: list[Trace]) -> None:
    # K = 1. Nothing right: 4 rounds of 4 tokens. Everything: 2 rounds.
    never, always = Score(hits=((False,) * 4,)), Score(hits=((True,) * 4,))
    plain = with_rounds(traces[0], (Source.TARGET, 0), (Source.NEURAL, 0))
    assert saved_share([plain], never, always, 1) == pytest.approx(1 / 2)
    assert saved_share([plain], always, never, 1) == pytest.approx(-1)
    # Three of four tokens came with the memory's rounds.
    mixed = with_rounds(traces[0], (Source.MEMORY, 2), (Source.NEURAL, 0))
    assert saved_share([mixed], never, always, 1) == pytest.approx(1 / 8)
    assert saved_share([with_rounds(traces[0])], never, always, 1) == 0.0


def test_the_ratio_is_time_saved_within_the_horizon_over_time_spent_on_it() -> None:
    cpu = Cpu()
    payback = Payback(100.0, cpu)
    assert (payback.earlier_version, payback.ratio, payback.share) == (None, None, 1.0)
    cpu.now_s = 2.0
    payback.gated(0, 1, None)
    assert payback.earlier_version == 0  # compared with what served before the first step
    cpu.now_s = 5.0  # what the coming candidate took is not yet to be judged
    payback.gated(1, 1, 0.3)
    assert payback.ratio == pytest.approx(0.3 * 100 / 2)
    cpu.now_s = 6.0
    payback.gated(1, 3, 0.0)
    assert payback.ratio == pytest.approx((1 - SMOOTHING) * 15)
    payback.gated(3, 3, None)  # the earlier version is gone: nothing is learned of it
    assert payback.ratio == pytest.approx((1 - SMOOTHING) * 15)


def test_the_compared_versions_lie_a_fixed_number_of_gates_apart() -> None:
    payback = Payback(1.0, Cpu())
    for gate in range(3 * SPAN):
        payback.gated(gate, gate + 1, 0.0)
    assert payback.earlier_version == 3 * SPAN - SPAN


def test_less_is_spent_where_it_does_not_pay_and_all_again_where_traffic_has_changed() -> None:
    payback = Payback(10.0, Cpu(per_look_s=1.0))
    payback.gated(0, 1, None)
    payback.gated(1, 1, 0.05)
    assert payback.ratio < 1
    assert payback.share == LEAST_SHARE
    for _ in range(40):
        payback.gated(1, 1, 0.9)
    assert payback.share == 1.0
    for _ in range(40):
        payback.gated(1, 1, -0.1)
    assert payback.share == LEAST_SHARE
    payback.forget()
    assert (payback.ratio, payback.share, payback.earlier_version) == (None, 1.0, None)


@pytest.mark.parametrize(
    ("priority", "horizon_s", "share"),
    [("nice 10", 1e-6, LEAST_SHARE), ("normal", 1e-6, LEAST_SHARE), ("nice 10", 0.0, 1.0),
     (IDLE_CLASS, 1e-6, 1.0)],
)  # fmt: skip
def test_time_that_nobody_else_wants_has_not_to_be_earned_back(
    tmp_path: Path, priority: str, horizon_s: float, share: float
) -> None:
    payback = make_payback(tiny_config(tmp_path, payback_s=horizon_s), priority)
    payback.gated(0, 1, None)
    sum(range(100_000))  # takes some CPU time
    payback.gated(1, 2, 0.5)
    payback.gated(2, 2, 0.5)
    assert payback.share == share


def test_a_trainer_that_does_not_pay_makes_fewer_steps_until_traffic_changes(
    world_of: WorldMaker, traces: list[Trace], caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(world_of("world", [], steps_per_trace=4.0))
    training, wishes = loop.training, [Control()]
    payback = Payback(1e-9, Cpu(per_look_s=1.0))
    pace = Pace(wishes=lambda: wishes[0])
    loop.follower = Follower(training, loop.watch, 0.01, pace, payback)

    def steps_of(new: list[Trace]) -> float:
        before = training.parts.learner.num_steps + training.debt_steps
        for trace in new:
            training.parts.rows.store.append("w", [trace])
            loop.until_idle()
        return training.parts.learner.num_steps + training.debt_steps - before

    with caplog.at_level(logging.INFO):
        steps_of(traces[:10])
    assert training.pay_share == LEAST_SHARE
    assert caplog.text.count("of the steps from now on") == 1
    loop.watch.tell(at_once=True)
    assert read_status(loop.status)["payback_ratio"] == payback.ratio
    assert any("adapter/payback_ratio" in row for _, row in loop.tracker.rows)
    assert steps_of(traces[10:14]) == pytest.approx(4 * 4 * LEAST_SHARE)
    wishes[0] = Control(num_drifts=1)
    loop.follower.turn()
    assert training.pay_share == 1.0
    assert steps_of(traces[14:15]) == pytest.approx(4 * training.config.drift_steps_factor)


def test_what_is_owed_shrinks_with_the_share(world_of: WorldMaker, traces: list[Trace]) -> None:
    training = world_of("world", traces[:4], steps_per_trace=2.0).training()
    training.take_new(4)
    training.pay(0.5)
    assert training.debt_steps == 4.0
    training.pay(1.0)
    assert training.debt_steps == 4.0  # what was let go is not owed again


def test_the_version_in_service_is_compared_with_an_earlier_one_on_the_same_traces(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.payback.SPAN", 2)
    loop = Loop(world_of("world", [], steps_per_trace=2.0, gate_confidence=0.0))
    training, payback = loop.training, Payback(3600.0, Cpu(per_look_s=1.0))
    loop.follower = Follower(training, loop.watch, 0.01, payback=payback)
    compared: list[tuple[int | None, int]] = []
    judge = training.judge.judge

    def spied(rows: Sequence[StoredTrace], earlier_version: int | None) -> Judgement:
        found = judge(rows, earlier_version)
        compared.append((earlier_version, found.verdict.served_version))
        if earlier_version is None:
            assert found.saved is None
        else:
            adapter = training.parts.versions.usable(earlier_version) if earlier_version else None
            with training.parts.learner.draft.showing(adapter):
                score = training.parts.learner.score([row.trace for row in rows], earlier_version)
            verdict = found.verdict
            lengths = [accepted_length(one.hits, verdict.rule.draft_len)
                       for one in (score, verdict.served)]  # fmt: skip
            assert found.saved == pytest.approx(1 - lengths[0] / lengths[1])
        return found

    monkeypatch.setattr(Judge, "judge", lambda _, *seen: spied(*seen))
    for trace in traces[:12]:
        training.parts.rows.store.append("w", [trace])
        loop.until_idle()
    assert compared == [(None, 0), (0, 1), (0, 2), (1, 3)]


def test_nothing_is_saved_over_a_version_that_is_gone(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    training = world_of("world", traces[:6]).training()
    training.take_new(6)
    training.earlier_version = 7
    publication = training.publish()
    assert publication is not None
    assert publication.found.saved is None


@pytest.mark.parametrize(("priority", "share"), [("nice 10", LEAST_SHARE), (IDLE_CLASS, 1.0)])
def test_the_loop_is_told_what_training_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priority: str, share: float
) -> None:
    monkeypatch.setenv("DVI_HOME", str(tmp_path / "home"))
    make_model(tmp_path / "model", 1)
    service = make_service_world(tmp_path / "state", tmp_path / "model")
    told: list[Payback] = []

    def follower(*parts: object) -> object:
        told.append(next(part for part in parts if isinstance(part, Payback)))
        return SimpleNamespace(run=lambda _: None)

    monkeypatch.setattr("trainers.background.Follower", follower)
    service.config.trainer.payback_s = 1e-9
    serve_training(service.config, threading.Event(), priority)
    service.store.close()
    for saved in (None, 0.5, 0.5):
        sum(range(100_000))  # takes some CPU time
        told[0].gated(0, 1, saved)
    assert told[0].share == share
