"""Kill -9 of the server at random points: what it counted is there, and it answers as before."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
import pytest

from dvi.config import DviConfig, ReplayConfig
from dvi.config.io import dump_config, load_config
from dvi.replay import open_store
from serving.http_server import bind
from serving.main import serve
from tests.serving.live import tiny_config, wait_for
from tests.soak.test_soak import metrics_of

# A process that is forked from one that has imported everything starts in half a second.
CONTEXT = multiprocessing.get_context("forkserver")
NUM_ROUNDS = int(os.environ.get("DVI_KILL_ROUNDS", "50"))
NUM_SEEDS = 5
BODY = {"prompt": "SELECT name FROM orders", "max_tokens": 12, "ignore_eos": True}


def run_server(config_path: str, run_dir: str) -> None:
    """Target of the process."""
    raise SystemExit(serve(load_config(Path(config_path)), Path(run_dir)))


def start(folder: Path) -> ForkServerProcess:
    process = CONTEXT.Process(target=run_server, args=(str(folder / "c.json"), str(folder)))
    process.start()
    return process


def ask(url: str, seed: int) -> Any:
    answer = httpx.post(f"{url}/v1/completions", json=BODY | {"seed": seed}, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/ready", timeout=5).status_code == 200
    return False


def ask_on(url: str, stop: threading.Event, known: dict[int, Any]) -> None:
    """Until it is killed; an answer that was delivered equals any other to the same request."""
    seed = 0
    with suppress(httpx.TransportError):
        while not stop.is_set():
            seed = (seed + 1) % NUM_SEEDS
            answer = ask(url, seed)
            assert known.setdefault(seed, answer) == answer


def check_store(config: DviConfig, at_least: float) -> int:
    """The number of rows; the file is whole."""
    url = f"sqlite:///{config.state_dir}/replay.sqlite"
    with open_store(url, ReplayConfig()) as store:
        rows = store.read({}, 100_000)
        assert len(rows) >= at_least
        connection = store._database.engine.connect()
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
        connection.close()
    return len(rows)


def kill_rounds(model: Path, folder: Path, num_rounds: int, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    CONTEXT.set_forkserver_preload(["tests.serving.test_kills"])
    config = tiny_config(model, folder / "state")
    with bind("127.0.0.1", 0) as free:
        config.serving.port = free.getsockname()[1]
    dump_config(config, folder / "c.json")
    url = f"http://127.0.0.1:{config.serving.port}"
    known: dict[int, Any] = {}
    num_rows = 0
    for number in range(num_rounds):
        process, stop = start(folder), threading.Event()
        if number % 4 == 3:  # any moment of the start
            time.sleep(rng.uniform(0, 1.0))
            written = 0.0
        else:
            assert wait_for(lambda: is_ready(url), 60)
            client = threading.Thread(target=ask_on, args=(url, stop, known))
            client.start()
            time.sleep(rng.uniform(0, 1.5))
            written = metrics_of(url)["dvi_traces_written_total"]
        process.kill()
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
        stop.set()
        if (folder / "state" / "replay.sqlite").exists():
            num_rows = check_store(config, num_rows + written)
    process = start(folder)
    assert wait_for(lambda: is_ready(url), 60)
    for asked in range(NUM_SEEDS):
        answer = ask(url, asked)
        assert known.get(asked, answer) == answer
    assert known
    assert wait_for(lambda: metrics_of(url)["dvi_traces_written_total"] == NUM_SEEDS)
    process.terminate()
    process.join(30)
    assert process.exitcode == 0
    assert check_store(config, num_rows + NUM_SEEDS) > NUM_SEEDS


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_kill_9_of_the_server_fifty_times_loses_nothing_that_it_counted(
    tiny_model: Path, tmp_path: Path
) -> None:
    kill_rounds(tiny_model, tmp_path, num_rounds=NUM_ROUNDS, seed=5)
