"""Tools through HTTP: what the model is shown, what the client gets, which bodies are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import openai
import pytest

from dvi.types import FinishReason
from serving.tools.syntax import ToolForm, ToolSyntax
from tests.serving.fakes import FakeEngine, FakeServer, fake_model, fake_server
from tests.serving.test_requests import USER, post, refusal
from tests.serving.tools.calling import CITY, CLOCK, WEATHER, tool, written

CHAT = "/v1/chat/completions"
TOOLS: dict[str, Any] = {"tools": [WEATHER, CLOCK]}
TWO = ["Let me ", "see.\n<tool", *written("weather", city="Rome").removeprefix("<tool")]
TWO += ["\n", written("clock")]
ROOMY = {"max_context_len": 4000}


@contextmanager
def saying(*words: str, finish: FinishReason = FinishReason.STOP, **model: Any) -> Iterator[Any]:
    """A server whose model says these words, and a client."""
    engine = FakeEngine(words, finish)
    with (
        fake_server(engine, model=fake_model(**ROOMY | model)) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield server, client


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server(model=fake_model(**ROOMY)) as running:
        yield running


def shown(server: FakeServer) -> str:
    """The newest prompt."""
    return bytes(server.engine.requests[-1].prompt_ids).decode()


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def ask(client: openai.OpenAI, **more: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=[USER], **TOOLS | more)


def test_calls_come_back_whole_and_streamed_alike() -> None:
    expected = [("weather", '{"city": "Rome"}'), ("clock", "{}")]
    with saying(*TWO) as (_, client):
        (choice,) = ask(client).choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        assert calls_of(choice.message) == expected
        ids = [call.id for call in choice.message.tool_calls]
        assert len(set(ids)) == 2
        assert all(len(name) == 9 and name.isalnum() for name in ids)
        with client.chat.completions.stream(model="tiny", messages=[USER], **TOOLS) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        assert final.message.content == "Let me see."
        assert calls_of(final.message) == expected


def test_streamed_calls_begin_with_id_and_name_and_go_on_with_arguments() -> None:
    with saying(*TWO) as (_, client):
        entries = [
            entry
            for chunk in ask(client, stream=True)
            for choice in chunk.choices
            for entry in choice.delta.tool_calls or ()
        ]
    first, *rest = [entry for entry in entries if entry.index == 0]
    assert (first.type, first.function.name) == ("function", "weather")
    assert first.id
    assert len(rest) > 3  # as they were written, not all at once
    assert all(entry.id is None and entry.function.name is None for entry in rest)
    assert [entry.index for entry in entries] == sorted(entry.index for entry in entries)


def test_content_is_null_where_there_are_only_calls() -> None:
    with saying(written("clock")) as (server, client):
        message = ask(client).choices[0].message
        assert message.content is None
        sent = post(server, CHAT, TOOLS).json()["choices"][0]["message"]
        back = {"messages": [USER, sent, {"role": "tool", "content": "9", "tool_call_id": "x"}]}
        answer = post(server, CHAT, TOOLS | back)
        assert answer.status_code == 200
        assert answer.json()["dvi"]["ignored_fields"] == []


def test_an_answer_that_a_limit_cuts_says_length() -> None:
    text = written("weather", city="Rome")
    with saying(text[:55], finish=FinishReason.LENGTH) as (_, client):
        (choice,) = ask(client).choices
        assert choice.finish_reason == "length"
        assert calls_of(choice.message) == [("weather", text[text.index('{"city') : 55])]


def test_parallel_tool_calls_false_leaves_one_call() -> None:
    with saying(*TWO) as (_, client):
        message = ask(client, parallel_tool_calls=False).choices[0].message
        assert [name for name, _ in calls_of(message)] == ["weather"]


def test_answers_are_left_alone_without_tools_or_with_choice_none() -> None:
    text = written("clock")
    with saying(text) as (server, _):
        for more in ({"tools": []}, {"tool_choice": "none"}, {"tools": None}):
            choice = post(server, CHAT, TOOLS | more).json()["choices"][0]
            assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
            assert choice["finish_reason"] == "stop"
            assert "[tool" not in shown(server)


def test_the_parser_none_leaves_calls_in_the_text_but_keeps_required() -> None:
    syntax = replace(fake_model().tools, reads_auto=False)
    with saying(written("clock"), tools=syntax) as (_, client):
        assert ask(client).choices[0].message.content == written("clock")
        required = ask(client, tool_choice="required").choices[0]
        assert calls_of(required.message) == [("clock", "{}")]


def test_bare_calls_are_read_where_the_model_writes_them() -> None:
    syntax = ToolSyntax(shows_tools=True, shows_calls=True, form=ToolForm.JSON)
    with saying('{"name": "weather", "parameters": ', '{"city": "R"}}', tools=syntax) as (
        _,
        client,
    ):
        (choice,) = ask(client).choices
        assert calls_of(choice.message) == [("weather", '{"city": "R"}')]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)


def test_each_choice_has_calls_of_its_own() -> None:
    with saying(written("clock")) as (_, client):
        choices = ask(client, n=2).choices
        assert [calls_of(choice.message) for choice in choices] == [[("clock", "{}")]] * 2
        assert len({choice.message.tool_calls[0].id for choice in choices}) == 2


def test_the_model_is_shown_tools_and_earlier_calls_as_objects(server: FakeServer) -> None:
    call = {"id": "abc", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city": "Rome"}'}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": "sunny"},
    ]
    body = {"messages": turns, "tools": [tool("weather", CITY, strict=True), tool("clock")]}
    assert post(server, CHAT, body).status_code == 200
    prompt = shown(server)
    about = {"name": "weather", "description": "about weather", "parameters": CITY}
    assert f"[tool {json.dumps({'type': 'function', 'function': about})}]" in prompt
    assert '"name": "clock"' in prompt
    call["function"] = {"name": "weather", "arguments": {"city": "Rome"}}
    assert f"<assistant>[call {json.dumps(call)}]<tool>sunny" in prompt


def test_auto_leaves_the_model_free_and_required_does_not(server: FakeServer) -> None:
    def grammar(**more: Any) -> str | None:
        assert post(server, CHAT, TOOLS | more).status_code == 200
        return server.engine.requests[-1].sampling.grammar

    assert grammar() is None
    assert grammar(tool_choice="auto") is None
    required, named = grammar(tool_choice="required"), grammar(tool_choice=chosen("clock"))
    assert required is not None
    assert "weather" in required
    assert named is not None
    assert "weather" not in named
    one = grammar(tool_choice="required", parallel_tool_calls=False)
    assert one not in (None, required)
    # JSON as an answer excludes no call: either may come.
    either = grammar(response_format={"type": "json_object"})
    assert either is not None
    assert "clock" in either
    assert grammar(response_format={"type": "text"}) is None
    assert grammar(tool_choice="required", response_format={"type": "json_object"}) == required


def chosen(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def of_call(**function: Any) -> dict[str, Any]:
    call = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"} | function}
    return {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}


NESTED: dict[str, Any] = {"type": "object"}
for _ in range(90):
    NESTED = {"properties": {"a": NESTED}}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("tools", {"tools": "weather"}),
    ("tools", {"tools": [WEATHER] * 129}),
    ("tools[0]", {"tools": [7]}),
    ("tools[0].type", {"tools": [WEATHER | {"type": "retrieval"}]}),
    ("tools[0].function", {"tools": [{"type": "function"}]}),
    ("tools[1].function.name", {"tools": [WEATHER, tool("two words")]}),
    ("tools[0].function.name", {"tools": [tool("x" * 65)]}),
    ("tools[1].function.name", {"tools": [CLOCK, CLOCK]}),
    ("tools[0].function.description", {"tools": [tool("f", description=1)]}),
    ("tools[0].function.strict", {"tools": [tool("f", strict="yes")]}),
    ("tools[0].function.parameters", {"tools": [tool("f", parameters=[])]}),
    ("tools[0].function.parameters", {"tools": [tool("f", {"type": "string"})]}),
    ("tools[0].function.parameters", {"tools": [tool("f", {"properties": {"a": {"type": "x"}}})]}),
    ("tools[0].function.parameters", {"tools": [tool("f", {"required": "a"})]}),
    ("tools[0].function.parameters", {"tools": [tool("f", NESTED)]}),
    ("tool_choice", TOOLS | {"tool_choice": "always"}),
    ("tool_choice", TOOLS | {"tool_choice": chosen("rm")}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": chosen("weather")}),
    ("tool_choice", TOOLS | {"tool_choice": {"type": "function", "function": {}}}),
    ("parallel_tool_calls", TOOLS | {"parallel_tool_calls": 1}),
    ("structured_outputs", TOOLS | {"structured_outputs": {"regex": "a"}}),
    ("messages[1].tool_calls[0].function.arguments", of_call(arguments="{")),
    ("messages[1].tool_calls[0].function.arguments", of_call(arguments="[]")),
    ("messages[1].tool_calls[0].function.arguments", of_call(arguments={"a": 1})),
    ("messages[1].tool_calls[0].function.arguments", of_call(arguments='{"a": "\\ud800"}')),
    ("messages[1].tool_calls[0].function.arguments", of_call(arguments="[" * 5000)),
    ("messages[1].tool_calls[0].function.name", of_call(name=None)),
    ("messages[0].tool_calls", {"messages": [USER | of_call()["messages"][1] | USER]}),
]


@pytest.mark.parametrize(("param", "body"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_a_bad_body_is_refused_by_the_name_of_its_field(
    server: FakeServer, param: str, body: dict[str, Any]
) -> None:
    answer = post(server, CHAT, body)
    status, named, _ = refusal(answer)
    assert (status, named) == (400, param), answer.text
    assert len(answer.text) < 2000


def test_a_complaint_about_a_schema_says_where_in_it(server: FakeServer) -> None:
    wrong = {"properties": {"city": {"type": "strin"}}}
    message = post(server, CHAT, {"tools": [tool("f", wrong)]}).json()["error"]["message"]
    assert "properties.city.type" in message


def test_parameters_without_a_grammar_are_named_only_where_one_is_needed(
    server: FakeServer,
) -> None:
    body = {"tools": [CLOCK, tool("f", CITY | {"title": "refuse me"})]}
    assert post(server, CHAT, body).status_code == 200
    status, named, _ = refusal(post(server, CHAT, body | {"tool_choice": "required"}))
    assert (status, named) == (400, "tools[1].function.parameters")


def test_schemas_of_older_drafts_and_unknown_ones_are_taken(server: FakeServer) -> None:
    older = {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{}]} | CITY
    unknown = {"$schema": "http://127.0.0.1:9/none"} | CITY
    for schema in (older, unknown, {}, None):
        assert post(server, CHAT, {"tools": [tool("f", parameters=schema)]}).status_code == 200


def test_unknown_keys_inside_tools_and_calls_are_listed(server: FakeServer) -> None:
    body = of_call(mood="x") | {"tools": [CLOCK | {"cache": 1}]}
    body["messages"][1]["tool_calls"][0]["index"] = 0
    answer = post(server, CHAT, body).json()
    listed = ["messages[1].tool_calls[0].index", "messages[1].tool_calls[0].function.mood"]
    assert sorted(answer["dvi"]["ignored_fields"]) == sorted([*listed, "tools[0].cache"])


def test_a_template_that_knows_no_tools_says_so() -> None:
    with saying("hi", tools=ToolSyntax()) as (server, _):
        answer = post(server, CHAT, TOOLS)
        assert refusal(answer) == (400, "tools", "no_tool_template")
        assert "template" in answer.json()["error"]["message"]
        named = "messages[1].tool_calls"
        assert refusal(post(server, CHAT, of_call())) == (400, named, "no_tool_template")
        assert post(server, CHAT, TOOLS | {"tool_choice": "none"}).status_code == 200


def test_marks_that_are_special_tokens_keep_their_text() -> None:
    syntax = replace(fake_model().tools, marks_are_tokens=True, marks_are_special=True)
    with saying("hi", tools=syntax) as (server, _):
        post(server, CHAT, TOOLS)
        assert not server.engine.requests[-1].sampling.skip_special_tokens
        post(server, CHAT, {})
        assert server.engine.requests[-1].sampling.skip_special_tokens
