"""What the server and the config may ask of the trainer: pause, hurry, a cap; and the probe."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dvi.replay import RowKey
from dvi.types import Trace
from serving.trainer_control import TrainerControl
from tests.trainers.conftest import WorldMaker
from tests.trainers.test_follow import Loop
from trainers.control import Control, CpuBudget, Pace, read_control
from trainers.follow import Follower
from trainers.probe import ProbeSet
from trainers.status import read_status
from trainers.stream import replay_stream
from trainers.training import Publication


def test_the_trainer_reads_what_the_server_writes(tmp_path: Path) -> None:
    path = tmp_path / "trainer" / "control.json"
    assert read_control(path) == Control()
    server = TrainerControl(path)
    server.pause()
    assert read_control(path) == Control(is_paused=True)
    server.drifted()
    server.drifted()
    assert read_control(path) == Control(is_paused=True, num_drifts=2)
    TrainerControl(path).resume()  # another start of the server
    assert read_control(path) == Control(is_paused=False, num_drifts=2)
    assert [file.name for file in path.parent.iterdir()] == ["control.json"]
    for text in ("", "{", "[1]", '{"paused": 1, "drifts": "many"}'):
        path.write_text(text)
        assert read_control(path) == Control()


def paced(loop: Loop, pace: Pace) -> Follower:
    return Follower(loop.training, loop.watch, 0.01, pace)


def test_a_paused_trainer_takes_no_row_and_no_step_and_says_so(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    loop = Loop(world_of("world", traces[:10]))
    wishes = [Control(is_paused=True)]
    loop.follower = paced(loop, Pace(wishes=lambda: wishes[0]))
    for _ in range(5):
        assert not loop.follower.turn()
    assert loop.training.parts.intake.num_admitted == 0
    loop.watch.tell(at_once=True)
    assert read_status(loop.status)["paused"] is True
    wishes[0] = Control()
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == 10
    loop.watch.tell(at_once=True)
    assert read_status(loop.status)["paused"] is False


def test_after_drift_new_traces_pay_more_steps_on_the_newest_rows_alone(
    world_of: WorldMaker, traces: list[Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("world", traces[:8], drift_traces=3, drift_steps_factor=3.0)
    loop = Loop(world)
    wishes = [Control(num_drifts=4)]  # of an earlier start
    loop.follower = paced(loop, Pace(wishes=lambda: wishes[0]))
    loop.until_idle()
    assert loop.training.parts.learner.num_steps == 8
    shares: list[float] = []
    draw = loop.training.parts.rows.draw

    def watched(size: int, newest_share: float, draw_index: int) -> list[Trace]:
        shares.append(newest_share)
        return draw(size, newest_share, draw_index)

    monkeypatch.setattr(loop.training.parts.rows, "draw", watched)
    wishes[0] = Control(num_drifts=5)
    world.store.append("w", traces[8:10])
    loop.until_idle()
    assert shares == [1.0] * 6  # two traces at three steps
    world.store.append("w", traces[10:13])
    loop.until_idle()
    assert shares[6:] == [0.75] * 5  # one at three steps, two at one; the hurry is over


def test_the_budget_rests_until_cpu_time_is_the_allowed_share() -> None:
    now = {"wall": 100.0, "cpu": 7.0}
    budget = CpuBudget(0.25, lambda: now["wall"], lambda: now["cpu"])
    assert budget.pause_s() == 0
    now["wall"] += 1.0
    now["cpu"] += 1.0  # earned a quarter, owes three quarters: three seconds
    assert budget.pause_s() == pytest.approx(3.0)
    now["wall"] += 2.0
    assert budget.pause_s() == pytest.approx(1.0)
    now["wall"] += 1.0
    assert budget.pause_s() == pytest.approx(0.0, abs=1e-12)
    now["wall"] += 1000.0  # an idle night earns ten seconds' worth, no more
    assert budget.pause_s() == 0
    now["cpu"] += 2.5
    assert budget.pause_s() == 0
    now["cpu"] += 0.25
    assert budget.pause_s() == pytest.approx(1.0)


def test_the_loop_keeps_to_the_budget_and_still_tells_and_stops(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    loop = Loop(world_of("world", traces[:4]))
    stop = threading.Event()
    rests = iter([60.0])

    def pause_s() -> float:
        stop.set()  # while it rests
        return next(rests)

    paced(loop, Pace(pause_s=pause_s)).run(stop)
    assert loop.training.parts.learner.num_steps == 0
    assert read_status(loop.status)["steps"] == 0


def test_the_probe_is_a_fixed_set_scored_with_the_version_in_service(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    training = world.training()
    rates, sets, served = [], [], []
    for done in replay_stream(training):
        if isinstance(done, Publication):
            rates.append(training.probe_rate)
            sets.append(list(training.judge.probe._keys))
            served.append(done.verdict.served_version)
    assert len(rates) >= 4
    assert all(keys == sets[0] for keys in sets)
    fixed = [row.trace for row in world.store.load(sets[0])]
    learner = training.parts.learner
    assert served[0] == 0 < served[-1]
    for rate, version in zip(rates, served, strict=True):
        with learner.draft.showing(world.registry.read(version) if version else None):
            assert learner.score(fixed, version).agreement == rate


def test_a_probe_set_whose_rows_are_gone_begins_anew(
    world_of: WorldMaker, traces: list[Trace]
) -> None:
    world = world_of("world", traces)
    keys = [row.key for row in world.store.read({}, 6)]
    probe = ProbeSet(world.store)
    assert probe.measure(keys[:3], len) == 3
    assert probe.measure(keys[3:], len) == 3
    assert probe._keys == keys[:3]
    probe._keys = [RowKey("nobody", 1), keys[0]]
    assert probe.measure(keys[2:], len) == 4
    assert probe._keys == keys[2:]
