"""What an answer looks like on the wire, with a scripted engine."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dvi.types import FinishReason
from tests.serving.fakes import FakeEngine, FakeServer, fake_server

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
RATES = {
    "rounds",
    "proposed",
    "judged",
    "accepted",
    "acceptance_rate",
    "draft_efficiency",
    "mean_accepted_length",
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def events(server: FakeServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """All chunks of a stream; it must end with [DONE]."""
    answer = server.http.post(path, json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def wait_for(condition: Any, timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def test_a_whole_chat_answer_has_openais_shape(server: FakeServer) -> None:
    answer = server.http.post("/v1/chat/completions", json=CHAT)
    body = answer.json()
    assert body["object"] == "chat.completion"
    assert body["model"] == "tiny"
    assert body["system_fingerprint"] == "fp_test"
    assert body["id"] == answer.headers["x-request-id"]
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello world", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    prompt_len = len(b"<user>hi<assistant>")
    assert body["usage"] == {
        "prompt_tokens": prompt_len,
        "completion_tokens": 6,
        "total_tokens": prompt_len + 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_dvi_object_sums_over_choices(server: FakeServer) -> None:
    body = server.http.post("/v1/completions", json=TEXT | {"n": 2, "seed": 9}).json()
    dvi = body["dvi"]
    # Each choice: three rounds of two proposals, one accepted.
    assert {name: dvi[name] for name in ("rounds", "proposed", "judged", "accepted")} == {
        "rounds": 6,
        "proposed": 12,
        "judged": 12,
        "accepted": 6,
    }
    assert (dvi["acceptance_rate"], dvi["draft_efficiency"]) == (0.5, 0.5)
    assert dvi["mean_accepted_length"] == 2.0
    assert set(dvi) == RATES | {"by_source", "adapter_versions", "seed", "ignored_fields"}
    assert set(dvi["by_source"]) == {"neural", "memory"}
    assert dvi["by_source"]["neural"]["accepted"] == 6
    assert dvi["by_source"]["memory"]["acceptance_rate"] is None
    assert (dvi["adapter_versions"], dvi["seed"]) == ([1, 3], 9)


def test_choices_come_in_order_with_their_own_index(server: FakeServer) -> None:
    body = server.http.post("/v1/completions", json=TEXT | {"n": 3}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    asked = server.engine.requests[-3:]
    assert [request.sampling.choice_index for request in asked] == [0, 1, 2]
    assert len({request.request_id for request in asked}) == 1
    assert body["usage"]["prompt_tokens"] == 3  # a prompt counts once
    assert body["usage"]["completion_tokens"] == 18


def test_several_prompts_are_several_requests(server: FakeServer) -> None:
    body = server.http.post("/v1/completions", json={"prompt": [[5], [6, 7]], "n": 2}).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    asked = server.engine.requests[-4:]
    assert [request.prompt_ids for request in asked] == [(5,), (5,), (6, 7), (6, 7)]
    assert [request.sampling.choice_index for request in asked] == [0, 1, 0, 1]
    assert [r.request_id.removeprefix(body["id"]) for r in asked] == [" 0", " 0", " 1", " 1"]
    assert body["usage"]["prompt_tokens"] == 3


def test_token_ids_and_sources_come_when_asked_for(server: FakeServer) -> None:
    more = {"return_token_ids": True, "dvi": {"detail": True}}
    choice = server.http.post("/v1/completions", json=TEXT | more).json()["choices"][0]
    assert choice["token_ids"] == [10, 50, 11, 50, 12, 50]
    assert choice["prompt_token_ids"] == [298, *b"hi"]
    assert choice["dvi"]["sources"] == ["neural", "target"] * 3
    body = server.http.post("/v1/chat/completions", json=CHAT | more).json()
    assert bytes(body["prompt_token_ids"]) == b"<user>hi<assistant>"
    plain = server.http.post("/v1/completions", json=TEXT).json()["choices"][0]
    assert not {"token_ids", "prompt_token_ids", "dvi"} & set(plain)


def test_a_chat_stream_has_role_text_finish_and_summary(server: FakeServer) -> None:
    chunks = events(server, "/v1/chat/completions", CHAT)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello world"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None, None, None, "stop"]
    assert {c["object"] for c in chunks} == {"chat.completion.chunk"}
    assert len({c["id"] for c in chunks}) == 1
    assert ["dvi" in c for c in chunks] == [False, False, False, True]
    assert not any("usage" in c for c in chunks)


def test_the_usage_chunk_is_last_and_carries_the_summary(server: FakeServer) -> None:
    for path, body in (("/v1/completions", TEXT), ("/v1/chat/completions", CHAT)):
        chunks = events(server, path, body | {"stream_options": {"include_usage": True}})
        assert all(chunk["usage"] is None and "dvi" not in chunk for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 6
        assert chunks[-1]["dvi"]["accepted"] == 3


def test_a_stream_of_choices_ends_with_one_summary(server: FakeServer) -> None:
    chunks = events(server, "/v1/completions", TEXT | {"n": 3})
    texts = dict.fromkeys(range(3), "")
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert set(texts.values()) == {"Hello world"}
    assert [chunk for chunk in chunks if "dvi" in chunk] == [chunks[-1]]
    assert chunks[-1]["dvi"]["rounds"] == 9


def test_stream_and_whole_answer_agree(server: FakeServer) -> None:
    more = {"return_token_ids": True, "dvi": {"detail": True}, "seed": 1}
    whole = server.http.post("/v1/completions", json=TEXT | more).json()["choices"][0]
    chunks = [c["choices"][0] for c in events(server, "/v1/completions", TEXT | more)]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert [i for chunk in chunks for i in chunk["token_ids"]] == whole["token_ids"]
    assert [s for chunk in chunks for s in chunk["dvi"]["sources"]] == whole["dvi"]["sources"]
    told = [chunk["prompt_token_ids"] for chunk in chunks if "prompt_token_ids" in chunk]
    assert told == [whole["prompt_token_ids"]]


def test_a_delta_without_text_is_not_sent_unless_tokens_are_asked_for() -> None:
    with fake_server(FakeEngine(words=("a", "", "b"))) as server:
        assert len(events(server, "/v1/completions", TEXT)) == 2
        assert len(events(server, "/v1/completions", TEXT | {"return_token_ids": True})) == 3


def test_a_clients_request_id_is_taken_over(server: FakeServer) -> None:
    headers = {"x-request-id": "mine-1"}
    answer = server.http.post("/v1/completions", json=TEXT, headers=headers)
    assert answer.headers["x-request-id"] == answer.json()["id"] == "mine-1"
    assert server.engine.requests[-1].request_id == "mine-1"
    assert server.http.get("/nowhere", headers=headers).headers["x-request-id"] == "mine-1"
    bad = server.http.post("/v1/completions", json=TEXT, headers={"x-request-id": "a b"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "X-Request-Id")
    assert bad.headers["x-request-id"].startswith("cmpl-")


def test_an_id_that_is_being_answered_is_answered_again_but_not_recorded() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    with fake_server(engine) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            headers = {"x-request-id": "same"}
            answers.append(httpx.post(server.url + "/v1/completions", json=TEXT, headers=headers))

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert wait_for(lambda: len(engine.requests) == 2)
        engine.gate.set()
        for thread in threads:
            thread.join()
        assert [answer.json()["id"] for answer in answers] == ["same", "same"]
        assert sorted(request.log for request in engine.requests) == [False, True]
        assert len({request.request_id for request in engine.requests}) == 2
        assert server.service.counts.view().duplicates == 1
        assert not server.service.in_flight


def test_a_full_queue_is_a_429_that_says_when_to_come_back() -> None:
    with fake_server(FakeEngine(max_queue=1)) as server:
        answer = server.http.post("/v1/completions", json=TEXT | {"n": 2})
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["error"]["code"] == "queue_full"
        stream = server.http.post("/v1/completions", json=TEXT | {"n": 2, "stream": True})
        assert stream.status_code == 429
        assert server.outcomes() == {"rejected": 2}
        assert server.http.post("/v1/completions", json=TEXT).status_code == 200


def test_a_failed_choice_is_a_500_without_the_engines_text() -> None:
    with fake_server(FakeEngine(finish=FinishReason.FAILED)) as server:
        answer = server.http.post("/v1/completions", json=TEXT)
        assert answer.status_code == 500
        assert answer.json()["error"]["type"] == "server_error"
        assert "secret" not in answer.text
        chunks = events(server, "/v1/completions", TEXT)
        assert chunks[-1]["error"]["code"] == "engine_failed"
        assert server.outcomes() == {"failed": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_the_engine(stream: bool) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    with fake_server(engine) as server:
        body = json.dumps(TEXT | {"stream": stream, "n": 2}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        host, port = server.url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)))
        client.sendall(head.encode() + body)
        assert wait_for(lambda: len(engine.requests) == 2)
        client.close()
        assert wait_for(lambda: engine.cancelled == {engine.requests[0].request_id})
        assert wait_for(lambda: server.outcomes() == {"cancelled": 1})
        assert not server.service.in_flight


def test_tokens_of_a_choice_that_ended_inside_a_cancelled_request_count_as_cancelled() -> None:
    engine = FakeEngine(words=("x",))
    with fake_server(engine) as server:
        submit = engine.submit_all

        def submit_first_only(requests: Any, deliver: Any) -> None:
            engine.gate.clear()
            submit(requests[:1], deliver)  # ends at once: its only word is its last
            engine.words = ("x", "y")
            submit(requests[1:], deliver)  # waits for the gate

        engine.submit_all = submit_first_only  # type: ignore[method-assign]
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + "/v1/completions", json=TEXT | {"n": 2}, timeout=0.5)
        assert wait_for(lambda: server.outcomes() == {"cancelled": 1})
        assert server.service.counts.view().undelivered_tokens == 2
