"""curl as a person at a shell uses it: the real binary, a live server on the tiny model."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.live import Live, live_server, tiny_config, wait_for

CURL = shutil.which("curl")
pytestmark = pytest.mark.skipif(CURL is None, reason="curl is not installed")
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("curl")
    with live_server(tiny_config(tiny_model, folder / "state"), folder) as running:
        yield running


def command(live: Live, path: str, body: dict[str, Any] | None, *options: str) -> list[str]:
    words = [CURL or "curl", "--silent", "--show-error", *options, live.server.url + path]
    if body is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return words


def curl(live: Live, path: str, body: dict[str, Any] | None, *options: str) -> tuple[str, str]:
    """Header lines and body of one answer."""
    done = subprocess.run(
        command(live, path, body, "--include", *options),
        capture_output=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    head, _, rest = done.stdout.decode().partition("\r\n\r\n")
    return head, rest


def test_a_stream_is_framed_as_events_and_says_what_the_whole_answer_says(live: Live) -> None:
    body = {
        "messages": [{"role": "user", "content": "na\xefve caf\xe9 \U0001f680"}],
        "max_tokens": 30,
        "seed": 4,
        "temperature": 1.3,
    }
    _, rest = curl(live, "/v1/chat/completions", body)
    whole = json.loads(rest)["choices"][0]["message"]["content"]
    head, text = curl(live, "/v1/chat/completions", body | {"stream": True}, "-N")
    assert head.startswith("HTTP/1.1 200 OK")
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:])
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert "content-length" not in headers
    *events, end, nothing = text.split("\n\n")
    assert (end, nothing) == ("data: [DONE]", "")
    assert all(event.startswith("data: {") and "\n" not in event for event in events)
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert {chunk["id"] for chunk in chunks} == {headers["x-request-id"]}
    parts = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert "".join(parts) == whole


def test_lines_come_while_the_answer_is_being_made(live: Live) -> None:
    body = {"prompt": "a", "max_tokens": 240, "ignore_eos": True, "stream": True}
    words = command(live, "/v1/completions", body, "-N")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"data: {")
        assert live.metrics()["dvi_running_requests"] == 1  # long before the end
        assert process.stdout.read().endswith(b"data: [DONE]\n\n")
    assert process.returncode == 0


def is_recorded(metrics: dict[str, float]) -> bool:
    """Whether the traces of all answers so far have been written or dropped."""
    answered = sum(metrics[f"dvi_requests_total{{{outcome}}}"] for outcome in ("stop", "length"))
    fates = ("dvi_traces_written_total", "dvi_traces_dropped_total{")
    return answered == sum(v for name, v in metrics.items() if name.startswith(fates))


@pytest.mark.parametrize("stream", [True, False])
def test_a_killed_curl_frees_its_row_and_leaves_no_record(live: Live, stream: bool) -> None:
    body = {"prompt": "b", "max_tokens": 240, "ignore_eos": True, "stream": stream}
    assert wait_for(lambda: is_recorded(live.metrics()))
    before = live.metrics()
    process = subprocess.Popen(command(live, "/v1/completions", body, "-N"), stdout=subprocess.PIPE)
    assert wait_for(lambda: live.metrics()["dvi_running_requests"] == 1)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    name = "dvi_requests_total{cancelled}"
    assert wait_for(lambda: live.metrics()[name] == before[name] + 1)
    after = live.metrics()
    assert after["dvi_running_requests"] == 0
    assert after["dvi_kv_used_ratio"] == before["dvi_kv_used_ratio"]
    assert after["dvi_traces_written_total"] == before["dvi_traces_written_total"]
    made = after["dvi_generated_tokens_total"] - before["dvi_generated_tokens_total"]
    assert after["dvi_cancelled_tokens_total"] - before["dvi_cancelled_tokens_total"] == made


def test_errors_have_a_status_and_one_json_line(live: Live) -> None:
    asked: list[tuple[str, Any, int, str | None]] = [
        ("/v1/completions", {"prompt": "x", "top_p": 2}, 400, "top_p"),
        ("/v1/completions", {"prompt": "x", "model": "gpt-4"}, 404, "model"),
        ("/v1/chat/completions", {"messages": []}, 400, "messages"),
        ("/v1/nothing", None, 404, None),
    ]
    for path, body, status, param in asked:
        head, text = curl(live, path, body)
        assert head.split(" ")[1] == str(status)
        assert json.loads(text)["error"]["param"] == param
    # What curl sends without a content type is a form.
    head, _ = curl(live, "/v1/completions", None, "-d", '{"prompt": "x"}')
    assert head.split(" ")[1] == "415"


def test_a_body_sent_after_100_continue_and_in_pieces_is_read(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"prompt": "ab " * 20, "max_tokens": 2, "note": "y" * 200_000}))
    kind = ("-H", "Content-Type: application/json")
    for more in (("-H", "Expect: 100-continue"), ("-H", "Transfer-Encoding: chunked")):
        done = subprocess.run(
            command(live, "/v1/completions", None, *kind, *more, "-d", f"@{file}"),
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        assert json.loads(done.stdout)["dvi"]["ignored_fields"] == ["note"]
