"""The server as a process: one line to start, signals, kills, a full disk, a trainer that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from dvi.config import DviConfig
from dvi.config.io import dump_config
from dvi.decoding.startup import NotDeterministic
from dvi.registry import Registry
from serving.http_server import bind
from serving.main import serve
from serving.state_folder import StateFolderBusy, locked_state_folder
from tests.serving.live import live_server, tiny_config, wait_for
from tests.serving.processes import RUN, Process, is_alive, server_process

PROMPT = "SELECT name FROM orders"


def learning_config(model: Path, state: Path) -> DviConfig:
    """A trainer that steps and publishes after very few traces."""
    config = tiny_config(model, state)
    trainer = replace(
        config.trainer,
        enabled=True,
        batch_size=2,
        warmup_steps=1,
        publish_steps=1,
        save_steps=1,
        min_holdout_traces=1,
        gate_confidence=0.0,  # all are promoted: the test is about the way, not alpha
        poll_interval_s=0.05,
        priority="normal",  # a busy test run leaves no core idle
        payback_s=0.0,  # every step that is paid for is made
    )
    return replace(config, trainer=trainer)


def ask(process: Process, **body: Any) -> dict[str, Any]:
    answer = process.http.post(
        "/v1/completions", json={"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True} | body
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def steps(process: Process) -> float:
    return process.metric("dvi_trainer_steps_total")


def ask_until(process: Process, condition: Any, timeout_s: float = 90.0) -> bool:
    """Send traffic until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        ask(process)
        time.sleep(0.05)
    return bool(condition())


def test_learning_goes_on_through_kills_of_trainer_and_server(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = learning_config(tiny_model, tmp_path / "state")
    with server_process(config, tmp_path / "one") as process:
        assert "adapter version 0" in process.ready
        assert str(tmp_path / "state" / "replay.sqlite") in process.ready
        answer = ask(process, seed=7)
        expected, fingerprint = answer["choices"], answer["system_fingerprint"]
        assert ask_until(process, lambda: process.metric("dvi_adapter_version") >= 1)
        first = process.trainer_pid()
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: process.metric("dvi_trainer_up") == 0, 10)
        assert ask(process, seed=7)["choices"] == expected
        before = steps(process)
        assert ask_until(
            process, lambda: process.trainer_pid() != first and steps(process) > before
        )
        written = process.metric("dvi_traces_written_total")
        second = process.trainer_pid()
        assert second is not None
        process.popen.kill()
        process.popen.wait()
        # It is told at once, but runs only where nobody else wants the CPU.
        assert wait_for(lambda: not is_alive(second), 90)
    in_service = Registry(tmp_path / "state" / "adapters").current()
    assert in_service >= 1
    with live_server(tiny_config(tiny_model, tmp_path / "state"), tmp_path) as live:
        assert f"adapter version {in_service} " in live.server.ready_line()
        metrics = live.metrics()
        assert metrics["dvi_replay_rows"] >= written
        assert metrics["dvi_trainer_steps_total"] >= before
        body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "seed": 7}
        answer = live.http.post("/v1/completions", json=body).json()
        assert answer["choices"] == expected
        assert answer["system_fingerprint"] == fingerprint


@pytest.fixture
def process_modes() -> Iterator[None]:
    """Put back what ``serve`` sets for its whole process."""
    interval_s = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval_s)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("process_modes")
def test_sigterm_drains_a_running_stream_and_exits_0(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bind("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    config = tiny_config(tiny_model, tmp_path / "state")
    config.serving.port = port
    seen: list[str] = []

    def stream_through_the_signal() -> None:
        body = {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True, "stream": True, "seed": 1}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            wait_for(lambda: is_ready(http))
            with http.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                os.kill(os.getpid(), signal.SIGTERM)
                seen.extend(line for line in lines if line)

    client = threading.Thread(target=stream_through_the_signal)
    client.start()
    assert serve(config, tmp_path) == 0
    client.join()
    assert seen[-1] == "data: [DONE]"
    assert '"finish_reason": "length"' in seen[-2]
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.startswith(f"dvi ready: http://127.0.0.1:{port} | model tiny | adapter version 0 |")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_a_second_signal_stops_at_once(tiny_model: Path, tmp_path: Path) -> None:
    config = learning_config(tiny_model, tmp_path / "state")
    config.serving.drain_timeout_s = 60.0
    config.serving.max_context_len = 2000
    with server_process(config, tmp_path / "run") as process:
        threading.Thread(target=lambda: ask_quietly(process), daemon=True).start()
        assert wait_for(lambda: process.metric("dvi_running_requests") == 1)
        process.popen.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.popen.poll() is None
        assert process.http.get("/ready").status_code == 503
        start_s = time.monotonic()
        assert process.stop(signal.SIGINT) == 0
        assert time.monotonic() - start_s < 2


def ask_quietly(process: Process) -> None:
    with suppress(httpx.TransportError):  # the connection dies with the server
        ask(process, max_tokens=1900)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """What was printed: one line on stderr, nothing on stdout."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


# The model is loaded for as long as a busy machine may take, in operations that hold no lock.
LOADING = """
import time, torch, serving.engine_thread, serving.server
serving.engine_thread.STOP_TIMEOUT_S = 0.2
def load(*_):
    print("loading", flush=True)
    end_s, ones = time.monotonic() + 20, torch.ones(700, 700)
    while time.monotonic() < end_s:
        ones @ ones
    raise ValueError("too late")
serving.server.build_runtime = load
"""


@pytest.mark.slow
def test_a_signal_while_the_model_is_loading_ends_the_process_with_0_and_without_an_abort(
    tiny_model: Path, tmp_path: Path
) -> None:
    dump_config(tiny_config(tiny_model, tmp_path / "state"), tmp_path / "config.json")
    words = [sys.executable, "-c", LOADING + RUN, str(tmp_path / "config.json"), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert server.stdout.readline() == b"loading\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
        assert server.stderr.read() == b""


def test_a_taken_port_is_one_line_and_1_before_the_model_is_read(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with bind("127.0.0.1", 0) as taken:
        config = tiny_config(tiny_model, tmp_path / "state")
        config.serving.port = taken.getsockname()[1]
        start_s = time.monotonic()
        assert serve(config, tmp_path) == 1
        assert time.monotonic() - start_s < 1
    assert f"serving.port={config.serving.port + 1}" in said(capsys)
    assert not (tmp_path / "state").exists()


def test_a_second_server_on_one_state_folder_is_one_line_and_1(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked_state_folder(tmp_path / "state"):
        assert serve(tiny_config(tiny_model, tmp_path / "state"), tmp_path) == 1
        assert str(tmp_path / "state") in said(capsys)
        with pytest.raises(StateFolderBusy), locked_state_folder(tmp_path / "state"):
            pass
    with locked_state_folder(tmp_path / "state"):
        pass


def test_wrong_use_is_one_line_and_2(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for change, word in (
        ({"host": "0.0.0.0"}, "DVI_API_KEY"),
        ({"host": "0.0.0.0", "api_key": "k"}, "replay.log_content"),
        ({"api_key_file": str(tmp_path / "none")}, "api_key_file"),
    ):
        config = tiny_config(tiny_model, tmp_path / "state")
        config = replace(config, serving=replace(config.serving, **change))
        assert serve(config, tmp_path) == 2
        assert word in said(capsys)
    config = tiny_config(tmp_path / "missing", tmp_path / "state")
    assert serve(config, tmp_path) == 2
    assert "missing" in said(capsys)


def test_a_machine_that_cannot_keep_determinism_is_one_line_and_1(
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise NotDeterministic("decoding.deterministic=true cannot be kept")

    monkeypatch.setattr("serving.server.build_runtime", refuse)
    assert serve(tiny_config(tiny_model, tmp_path / "state"), tmp_path) == 1
    assert "decoding.deterministic" in said(capsys)
