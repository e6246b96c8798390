"""Calls by a real engine: the same with and without speculation, streamed or whole, to the bit.

The tiny model is random: what it calls has no sense, but by grammar it is a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.rigs import make_model_folder
from tests.serving.live import Live, live_server, publish_random, tiny_config
from tests.serving.tools import templates
from tests.serving.tools.calling import WEATHER, tool

CHAT = "/v1/chat/completions"
UNIT = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
TOOLS = [tool("units", UNIT), tool("clock")]
NAMED = {"type": "function", "function": {"name": "units"}}
SHAPE = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SHAPE}}
ASKED: list[dict[str, Any]] = [
    {"tool_choice": "required"},
    {"tool_choice": "required", "temperature": 0, "parallel_tool_calls": False},
    {"tool_choice": NAMED, "logprobs": True},
    {"tool_choice": NAMED, "n": 2},
    {"tool_choice": "auto"},
    {"tool_choice": "auto", "response_format": FORMAT},
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("live")
    make_model_folder(folder / "model")
    (folder / "model" / "chat_template.jinja").write_text(templates.MARKED)
    config = tiny_config(folder / "model", folder / "state")
    config.serving = replace(config.serving, max_context_len=1024)
    with live_server(config, folder) as running:
        publish_random(running, 1, scale=0.1)
        yield running


def body_of(more: dict[str, Any]) -> dict[str, Any]:
    turns = [{"role": "user", "content": "SELECT name FROM orders"}]
    return {"messages": turns, "tools": TOOLS, "seed": 5, "max_tokens": 120} | more


def choices_of(live: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Choices, the ids of calls left out: they are the request's own."""
    answer = live.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    for choice in found:
        for call in choice["message"].get("tool_calls", ()):
            assert call.pop("id")
    return found


def streamed(live: Live, body: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]], str]]:
    """Content, calls and finish reason of each choice, by the openai client."""
    with live.client.chat.completions.stream(model="model", **body) as stream:
        choices = stream.get_final_completion().choices
    return [
        (
            choice.message.content or "",
            [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()],
            choice.finish_reason,
        )
        for choice in choices
    ]


def told(choice: dict[str, Any]) -> tuple[str, list[tuple[str, str]], str]:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    pairs = [(call["name"], call["arguments"]) for call in calls]
    return message["content"] or "", pairs, choice["finish_reason"]


@pytest.mark.parametrize("more", ASKED, ids=[str(i) for i in range(len(ASKED))])
def test_speculation_and_streaming_do_not_change_a_call(live: Live, more: dict[str, Any]) -> None:
    body = body_of(more) | {"return_token_ids": True}
    drafted = choices_of(live, body)
    plain = choices_of(live, body | {"dvi": {"speculation": False}})
    assert drafted == plain
    shape = {key: value for key, value in body_of(more).items() if key != "response_format"}
    if "response_format" not in more:
        assert streamed(live, shape) == [told(choice) for choice in drafted]


def test_required_and_a_name_are_kept_whatever_the_model_would_say(live: Live) -> None:
    for seed in range(3):
        body = body_of({"tool_choice": NAMED, "seed": seed})
        (choice,) = choices_of(live, body)
        content, calls, reason = told(choice)
        assert (content, reason) == ("", "tool_calls")
        ((name, arguments),) = calls
        assert name == "units"
        assert set(json.loads(arguments)) == {"unit"}
        assert json.loads(arguments)["unit"] in ("C", "F")
        required = body_of({"tool_choice": "required", "parallel_tool_calls": False, "seed": seed})
        (choice,) = choices_of(live, required)
        assert [name for name, _ in told(choice)[1]] in (["units"], ["clock"])


def test_a_schema_that_no_grammar_can_follow_is_named(live: Live) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such-format"}}}
    body = body_of({"tools": [WEATHER, tool("odd", odd)], "tool_choice": "required"})
    answer = live.http.post(CHAT, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools[1].function.parameters"
