"""The bytes of a body: JSON in UTF-8 is read, anything else is a 400 that says what and where."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.serving.fakes import FakeServer, fake_server


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


def send(server: FakeServer, body: bytes) -> httpx.Response:
    headers = {"content-type": "application/json"}
    return server.http.post("/v1/completions", content=body, headers=headers)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b"\xff",
        b"",
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(server: FakeServer, body: bytes) -> None:
    answer = send(server, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def test_a_byte_order_mark_and_deep_nesting_are_json(server: FakeServer) -> None:
    deep = b"[" * 190 + b"]" * 190
    for body in (b'\xef\xbb\xbf{"prompt": "hi"}', b'{"prompt": "hi", "mine": ' + deep + b"}"):
        assert send(server, body).status_code == 200


def test_a_body_that_cannot_be_read_says_what_and_where(server: FakeServer) -> None:
    for body, reason in ((b'{"a": 1,}', "trailing comma"), (b"[" * 300, "recursion limit")):
        message = send(server, body).json()["error"]["message"]
        assert reason in message
        assert "at line 1 column" in message
