"""Two servers and one trainer at a time on one PostgreSQL and one folder of adapters, for real."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dvi.cli.main import run
from dvi.config import DviConfig
from dvi.registry import Registry
from dvi.replay import Selection, open_store
from dvi.replay.lease import LEASE_S
from serving.main import serve
from serving.state_folder import hash_name
from tests.postgres import Cluster
from tests.serving.live import wait_for
from tests.serving.processes import Process, server_process
from tests.serving.test_process import ask, learning_config, steps
from trainers.checkpoint import CheckpointStore

USERS = ("ann", "bob")


def machine_config(model: Path, folder: Path, name: str) -> DviConfig:
    """A state folder of its own; the adapters' folder is everybody's."""
    config = learning_config(model, folder / name)
    return replace(config, registry=replace(config.registry, path=str(folder / "shared")))


@pytest.fixture
def servers(
    tiny_model: Path, tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Process]]:
    """Both may train; they are started together."""
    monkeypatch.setenv("DVI_REPLAY_URL", database)
    started: dict[int, Process] = {}
    with ExitStack() as stack:

        def start(number: int) -> None:
            config = machine_config(tiny_model, tmp_path, f"state{number}")
            run_dir = tmp_path / f"run{number}"
            started[number] = stack.enter_context(server_process(config, run_dir))

        threads = [threading.Thread(target=start, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        yield [started[0], started[1]]


def ask_both(servers: list[Process], what: object, timeout_s: float = 120.0) -> bool:
    """Traffic to both, of two users, until it is true."""
    assert callable(what)
    deadline = time.monotonic() + timeout_s
    while not what() and time.monotonic() < deadline:
        for server in servers:
            for user in USERS:
                ask(server, user=user)
        time.sleep(0.05)
    return bool(what())


def trainers(servers: list[Process]) -> list[Process]:
    """Servers whose trainer has told of a step."""
    return [server for server in servers if steps(server) > 0]


@pytest.mark.slow
def test_two_servers_share_store_versions_and_one_trainer_that_another_follows(
    servers: list[Process], tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = Registry(tmp_path / "shared")
    assert ask_both(servers, lambda: registry.current() >= 1)
    version = registry.current()
    # Each promoted version reaches both.
    for server in servers:
        assert wait_for(lambda server=server: server.metric("dvi_adapter_version") >= version, 30)
    # Exactly one trains.
    (trains,) = trainers(servers)
    (other,) = [server for server in servers if server is not trains]
    before = steps(trains)
    killed = trains.trainer_pid()
    assert killed is not None
    # Its whole machine dies: server and trainer at once.
    trains.popen.kill()
    os.kill(killed, signal.SIGKILL)
    trains.popen.wait()
    died_s = time.monotonic()
    assert ask_both([other], lambda: steps(other) > 0, LEASE_S + 60)
    print(f"taken over after {time.monotonic() - died_s:.1f} s")
    assert steps(other) >= before - 1  # it went on from the checkpoint, one step apart at most
    assert ask_both([other], lambda: registry.current() > version)

    config = machine_config(tmp_path, tmp_path, other.state.name)
    written = other.metric("dvi_traces_written_total")
    assert wait_for(lambda: other.metric("dvi_replay_rows") >= written, 10)
    with open_store(database, config.replay) as store:
        key = (tmp_path / "shared" / "user_hash.key").read_bytes()
        anns = store.count(Selection(user_hash=hash_name(key, "ann")))
        rows = store.stats().rows
        writers = {row.key.writer for row in store.read({}, 10_000)}
    assert len(writers) == 2  # rows of both servers, found by one hash
    assert anns == rows / 2
    # Every trace was admitted once: the cursor stands at each writer's last row.
    assert other.stop() == 0
    checkpoint = CheckpointStore(tmp_path / "shared" / "trainer").load()[0]
    assert checkpoint is not None
    intake = checkpoint.intake
    assert sum(intake.cursor.values()) == intake.num_admitted + checkpoint.counters.unusable_rows

    assert purge(config, "--user", "ann", "--yes") == 0
    assert f"{anns} answers selected, {anns} erased" in capsys.readouterr().out
    with open_store(database, config.replay) as store:
        assert store.stats().rows == rows - anns


def purge(config: DviConfig, *words: str) -> int:
    shared = [f"state_dir={config.state_dir}", f"registry.path={config.registry.path}"]
    return run(["replay", "purge", *shared, *words])


@pytest.mark.slow
def test_a_database_that_goes_and_comes_back_is_not_felt_and_its_loss_is_counted(
    servers: list[Process], cluster: Cluster
) -> None:
    server = servers[0]
    expected = ask(server, seed=7)["choices"]
    assert ask_both(servers, lambda: server.metric("dvi_traces_written_total") >= 3)
    written = server.metric("dvi_traces_written_total")
    cluster.stop()
    try:
        slowest = 0.0
        lost = "dvi_traces_dropped_total{store_error}"
        while server.metric(lost) < 3:
            started_s = time.monotonic()
            assert ask(server, seed=7)["choices"] == expected
            slowest = max(slowest, time.monotonic() - started_s)
            time.sleep(0.1)
        print(f"slowest answer {slowest:.2f} s")
        assert server.http.get("/ready").status_code == 200
    finally:
        cluster.start()
    assert ask_both([server], lambda: server.metric("dvi_traces_written_total") > written + 3)


def test_a_url_that_cannot_be_used_is_one_line_and_2_before_anything_is_made(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = machine_config(tiny_model, tmp_path, "state")
    config.replay.url = "postgresql+psycopg2://me:hunter2@h/d"
    assert serve(config, tmp_path / "run") == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "write postgresql+psycopg://" in err
    assert "hunter2" not in err
    assert not (tmp_path / "state").exists()
