"""What a server bears: body size, time, a failing or dead engine, and logs that hold no content."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from dvi.config import ServingConfig
from dvi.types import FinishReason
from serving.auth import AccessRules
from serving.service import FAILING_FOR_S, Health
from tests.serving.fakes import FakeEngine, fake_model, fake_server
from tests.serving.live import live_server, tiny_config

TEXT = {"prompt": "hi"}
MARKER = "xylophone-quagga"


def refusal(answer: httpx.Response) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_body_beyond_the_limit_is_a_413_whether_it_tells_its_size_or_not() -> None:
    with fake_server() as server:
        server.service.config.max_body_bytes = 2000
        big = json.dumps(TEXT | {"padding": "x" * 3000}).encode()
        headers = {"content-type": "application/json"}
        told = server.http.post("/v1/completions", content=big, headers=headers)
        assert refusal(told) == (413, "body_too_large")
        chunks = iter([big[:1500], big[1500:]])
        untold = server.http.post("/v1/completions", content=chunks, headers=headers)
        assert refusal(untold) == (413, "body_too_large")
        small = json.dumps(TEXT | {"padding": "x" * 1000}).encode()
        assert server.http.post("/v1/completions", content=small, headers=headers).is_success
        assert server.outcomes() == {"rejected": 2, "stop": 1}


class LateEngine(FakeEngine):
    """Ends a choice at its deadline, as the real one does."""

    def _may_go_on(self, request: Any) -> bool:
        return False

    def _delta(self, request: Any, ids: Any, text: Any, reason: Any, counts: Any) -> Any:
        delta = super()._delta(request, ids, text, reason, counts)
        return replace(delta, error="timeout") if reason is FinishReason.CANCELLED else delta


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_past_its_time_is_told_so_and_not_tried_again(stream: bool) -> None:
    with fake_server(LateEngine(), model=fake_model(max_request_s=5.0)) as server:
        before_s = time.monotonic()
        answer = server.http.post("/v1/completions", json=TEXT | {"stream": stream})
        asked = server.engine.requests[-1]
        assert asked.deadline_s is not None
        assert 4.5 < asked.deadline_s - before_s <= 6
        if stream:
            events = [line for line in answer.text.split("\n\n") if line]
            assert json.loads(events[-2].removeprefix("data: "))["error"]["code"] == (
                "request_timeout"
            )
            assert events[-1] == "data: [DONE]"
        else:
            assert refusal(answer) == (408, "request_timeout")
            assert answer.headers["x-should-retry"] == "false"
        assert server.outcomes() == {"cancelled": 1}


def test_three_failures_in_a_row_turn_ready_off_until_an_answer_succeeds() -> None:
    engine = FakeEngine(finish=FinishReason.FAILED)
    with fake_server(engine) as server:
        for _ in range(3):
            assert server.http.get("/ready").status_code == 200
            assert server.http.post("/v1/completions", json=TEXT).status_code == 500
        ready = server.http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "failing")
        assert server.http.get("/health").status_code == 200
        engine.finish = FinishReason.STOP
        assert server.http.post("/v1/completions", json=TEXT).status_code == 200
        assert server.http.get("/ready").status_code == 200


def test_a_failure_long_ago_is_forgiven() -> None:
    now = [0.0]
    health = Health(lambda: now[0])
    for _ in range(3):
        health.request_failed()
    assert health.is_failing()
    now[0] = FAILING_FOR_S
    assert not health.is_failing()


def test_a_dead_decode_thread_is_seen_at_once() -> None:
    with fake_server() as server:
        server.service.is_decoding = lambda: False
        ready = server.http.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "stuck")
        assert refusal(server.http.post("/v1/completions", json=TEXT)) == (503, "stuck")
        assert server.http.get("/health").status_code == 200


def test_a_page_that_rebinds_its_name_and_a_form_of_another_site_get_nothing() -> None:
    with fake_server() as server:
        port = server.url.rsplit(":", 1)[1]
        # DNS rebinding: the page's own host now resolves to loopback, so Host and Origin agree.
        rebound = {"host": f"evil.example:{port}", "origin": f"http://evil.example:{port}"}
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/metrics"),
            ("GET", "/admin/adapters"),
        ):
            answer = server.http.request(method, path, headers=rebound)
            assert refusal(answer) == (403, "host_not_allowed")
        # A form can send three content types, and no Authorization header or JSON.
        kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
        for kind in kinds:
            for path in ("/v1/completions", "/admin/adapters/promote", "/admin/adapters/rollback"):
                form = {"content-type": kind, "origin": "https://evil.example"}
                assert server.http.post(path, content=b"a=b", headers=form).status_code == 403
                old_browser = {"content-type": kind}
                answer = server.http.post(path, content=b"a=b", headers=old_browser)
                assert answer.status_code == 415
        empty = {"origin": "https://evil.example"}
        assert server.http.post("/admin/adapters/rollback", headers=empty).status_code == 403
        assert server.engine.requests == []


def test_the_scope_is_a_user_of_a_key_and_names_neither() -> None:
    with fake_server(rules=AccessRules(("alpha", "beta"))) as server:

        def scope(key: str, user: str | None) -> str:
            headers = {"authorization": f"Bearer {key}"}
            answer = server.http.post(
                "/v1/completions", json=TEXT | {"user": user}, headers=headers
            )
            assert answer.status_code == 200
            return server.engine.requests[-1].scope

        found = [scope(k, u) for k in ("alpha", "beta") for u in (None, "ann", "bob")]
        assert len(set(found)) == 6
        assert scope("alpha", "ann") == found[1]
        assert not any("ann" in one or "alpha" in one for one in found)


def test_the_model_without_a_template_says_what_to_do() -> None:
    model = fake_model()
    model.tokenizer.has_chat_template = False  # type: ignore[misc]
    with fake_server(model=model) as server:
        body = {"messages": [{"role": "user", "content": "hi"}]}
        answer = server.http.post("/v1/chat/completions", json=body)
        assert refusal(answer) == (400, "no_chat_template")
        assert "/v1/completions" in answer.json()["error"]["message"]


def marked_bodies() -> list[tuple[str, dict[str, Any]]]:
    turn = {"role": "user", "content": MARKER}
    schema = {"type": MARKER}
    return [
        ("/v1/completions", {"prompt": MARKER, "max_tokens": 3}),
        ("/v1/completions", {"prompt": MARKER, "stop": MARKER, "user": MARKER, MARKER: 1}),
        ("/v1/completions", {"prompt": MARKER, "temperature": MARKER}),
        ("/v1/completions", {"prompt": MARKER, "structured_outputs": {"regex": MARKER + "("}}),
        ("/v1/completions", {"prompt": MARKER, "structured_outputs": {"json": schema}}),
        ("/v1/chat/completions", {"messages": [turn], "max_tokens": 3, "stream": True}),
        ("/v1/chat/completions", {"messages": [turn | {"role": MARKER}]}),
        ("/v1/chat/completions", {"messages": [turn], "chat_template_kwargs": {"messages": 1}}),
    ]


def test_neither_content_nor_keys_reach_a_log_or_the_metrics(
    tiny_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any
) -> None:
    config = tiny_config(tiny_model, tmp_path / "state")
    config.serving = ServingConfig(port=0, max_context_len=256, api_key="secret-key-of-ann")
    config.replay.log_content = False
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpcore"):
        caplog.set_level(logging.WARNING, logger=name)  # the test's own client
    with live_server(config, tmp_path) as live:
        live.http.headers["authorization"] = "Bearer secret-key-of-ann"
        for path, body in marked_bodies():
            status = live.http.post(path, json=body).status_code
            assert status in (200, 400), (path, body)
        refused = {"authorization": f"Bearer {MARKER}"}
        assert live.http.get("/v1/models", headers=refused).status_code == 401
        assert live.http.get("/v1/models/x", headers={"x-trace": MARKER}).status_code == 404
        metrics = live.http.get("/metrics").text
    written = [caplog.text, *capfd.readouterr(), metrics]
    for word in (MARKER, "secret-key-of-ann"):
        assert [text for text in written if word in text] == []
    for file in (tmp_path / "state").rglob("*"):
        if file.is_file():
            assert MARKER.encode() not in file.read_bytes(), file
