"""Fields that are not honoured: refused by name, accepted as hints, or listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from serving.fields import (
    CHAT_UNHONOURED,
    COMPLETION_UNHONOURED,
    HINTS,
    MESSAGE_UNHONOURED,
)
from serving.parse import parse
from serving.schema import ChatBody, CompletionBody
from tests.serving.fakes import FakeServer, fake_server
from tests.serving.test_requests import USER, post, refusal


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "table", "model"),
    [
        ("/v1/completions", COMPLETION_UNHONOURED, CompletionBody),
        ("/v1/chat/completions", CHAT_UNHONOURED, ChatBody),
    ],
)
def test_fields_of_others_are_refused_unless_they_ask_for_nothing(
    server: FakeServer, path: str, table: dict[str, tuple[Any, ...]], model: type[Any]
) -> None:
    assert not set(table) & set(model.model_fields)
    for name, inert in table.items():
        assert refusal(post(server, path, {name: 7})) == (400, name, "unsupported_parameter")
        for nothing in (None, [], {}, "", *inert):
            answer = post(server, path, {name: nothing})
            assert answer.status_code == 200, (name, nothing)
            assert answer.json()["dvi"]["ignored_fields"] == []


def test_a_boolean_is_not_the_number_that_asks_for_nothing(server: FakeServer) -> None:
    assert refusal(post(server, "/v1/completions", {"priority": False}))[1] == "priority"
    assert refusal(post(server, "/v1/chat/completions", {"echo": 0}))[1] == "echo"
    assert refusal(post(server, "/v1/completions", {"min_tokens": False}))[1] == "min_tokens"


def test_everything_that_is_wrong_is_named_in_one_message(server: FakeServer) -> None:
    body = {"tools": [{"type": "function"}], "bad_words": ["x"], "temperature": -1, "n": 99}
    body["messages"] = [USER | {"role": "robot"}, USER | {"tool_calls": [1]}]
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    named = (
        "tools",
        "bad_words",
        "temperature",
        "n:",
        "messages[0].role",
        "messages[1].tool_calls",
    )
    assert [name for name in named if name not in message] == []
    after = post(server, "/v1/chat/completions", {})
    assert after.status_code == 200


def test_hints_are_accepted_in_silence(server: FakeServer) -> None:
    body = dict.fromkeys(HINTS - {"include_obfuscation"}, "x")
    answer = post(server, "/v1/chat/completions", body)
    assert answer.status_code == 200
    assert answer.json()["dvi"]["ignored_fields"] == []


def test_unknown_keys_are_listed_and_counted(server: FakeServer) -> None:
    before = server.service.counts.view().ignored_fields
    message = USER | {"mood": "good", "refusal": None}
    answer = post(server, "/v1/chat/completions", {"colour": 1, "messages": [message]})
    assert answer.json()["dvi"]["ignored_fields"] == ["colour", "messages[0].mood"]
    assert server.service.counts.view().ignored_fields == before + 2


def test_unknown_keys_are_found_in_every_object_of_a_body() -> None:
    odd = {"odd": 1}
    part = {"type": "text", "text": "hi"} | odd
    call = {"function": {"name": "f", "arguments": "{}"} | odd} | odd
    tool = {"type": "function", "function": {"name": "f"} | odd} | odd
    schema = {"name": "x", "schema": {"type": "object"} | odd} | odd
    body: dict[str, Any] = {
        "messages": [USER | {"content": [part]}, {"role": "assistant", "tool_calls": [call]} | odd],
        "stream": True,
        "stream_options": odd,
        "response_format": {"type": "json_schema", "json_schema": schema} | odd,
        "structured_outputs": odd,
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "f"} | odd} | odd,
        "prediction": {"type": "content", "content": [part]} | odd,
    }
    # What a schema, metadata or a template's variables hold is the client's own.
    body |= {"metadata": {"odd": "1"}, "chat_template_kwargs": odd}
    assert set(parse(ChatBody, body | odd).ignored_fields) == {
        "odd",
        "messages[0].content[0].odd",
        "messages[1].odd",
        "messages[1].tool_calls[0].odd",
        "messages[1].tool_calls[0].function.odd",
        "stream_options.odd",
        "response_format.odd",
        "response_format.json_schema.odd",
        "structured_outputs.odd",
        "tools[0].odd",
        "tools[0].function.odd",
        "tool_choice.odd",
        "tool_choice.function.odd",
        "prediction.odd",
        "prediction.content[0].odd",
    }


def test_our_own_spelling_of_a_key_is_one_that_nobody_defines() -> None:
    wanted = {"structured_outputs": {"json_": {"type": "object"}}}
    parsed = parse(CompletionBody, {"prompt": "hi"} | wanted)
    assert parsed.ignored_fields == ("structured_outputs.json_",)
    assert parsed.body.structured_outputs is not None
    assert parsed.body.structured_outputs.grammar() is None
    named = {"type": "json_schema", "json_schema": {"schema_": {"type": "array"}}}
    parsed = parse(CompletionBody, {"prompt": "hi", "response_format": named})
    assert parsed.ignored_fields == ("response_format.json_schema.schema_",)
    assert parsed.body.response_format is not None
    assert parsed.body.response_format.schema_of_answer() == {"type": "object"}


def test_an_answer_can_be_sent_back_as_a_message(server: FakeServer) -> None:
    message = post(server, "/v1/chat/completions", {}).json()["choices"][0]["message"]
    echoed = message | dict.fromkeys(MESSAGE_UNHONOURED)
    answer = post(server, "/v1/chat/completions", {"messages": [USER, echoed]})
    assert answer.status_code == 200
    assert answer.json()["dvi"]["ignored_fields"] == []
