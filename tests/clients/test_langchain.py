"""LangChain's OpenAI-compatible models against a live server on the tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import SecretStr

from tests.serving.live import Live, live_server, tiny_config

TALK = [SystemMessage("Be short."), HumanMessage("Hi"), AIMessage("Yes?"), HumanMessage("Thanks")]


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("langchain")
    with live_server(tiny_config(tiny_model, folder / "state"), folder) as running:
        yield running


def chat_model(live: Live, **options: Any) -> ChatOpenAI:
    given: dict[str, Any] = {"model": "tiny", "max_retries": 0, "seed": 1, "temperature": 0.8}
    url = live.server.url + "/v1"
    return ChatOpenAI(base_url=url, api_key=SecretStr("none"), **(given | options))


def test_invoke_stream_and_async_say_the_same(live: Live) -> None:
    model = chat_model(live, max_completion_tokens=20)
    whole = model.invoke(TALK)
    parts = list(model.stream(TALK))
    assert "".join(str(part.content) for part in parts) == whole.content
    assert asyncio.run(model.ainvoke(TALK)).content == whole.content
    assert whole.usage_metadata is not None
    assert 1 <= whole.usage_metadata["output_tokens"] <= 20
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    assert whole.response_metadata["system_fingerprint"].startswith("fp_")


def test_streamed_usage_comes_once(live: Live) -> None:
    model = chat_model(live, max_completion_tokens=10, stream_usage=True)
    found = [part.usage_metadata for part in model.stream(TALK) if part.usage_metadata]
    assert len(found) == 1
    assert found[0] == model.invoke(TALK).usage_metadata


def test_a_batch_gives_each_its_own_answer(live: Live) -> None:
    model = chat_model(live, max_completion_tokens=10)
    prompts: list[Any] = [[HumanMessage(word)] for word in ("one", "two", "three", "four")]
    assert [answer.content for answer in model.batch(prompts)] == [
        model.invoke(prompt).content for prompt in prompts
    ]


def test_logprobs_stop_and_our_extension_pass_through(live: Live) -> None:
    model = chat_model(
        live,
        max_completion_tokens=10,
        logprobs=True,
        top_logprobs=2,
        stop_sequences=["e"],
        extra_body={"top_k": 20, "dvi": {"speculation": False}},
    )
    answer = model.invoke(TALK)
    assert "e" not in str(answer.content)
    entries = answer.response_metadata["logprobs"]["content"]
    assert answer.usage_metadata is not None
    assert len(entries) == answer.usage_metadata["output_tokens"]


def test_the_completion_model_answers_too(live: Live) -> None:
    model = OpenAI(
        base_url=live.server.url + "/v1",
        api_key=SecretStr("none"),
        model="tiny",
        max_tokens=12,
        seed=3,
        max_retries=0,
    )
    whole = model.invoke("SELECT name")
    assert "".join(model.stream("SELECT name")) == whole
    assert len(model.generate(["a", "b"]).generations) == 2


def test_tools_are_refused_by_name_and_not_dropped(live: Live) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="tools"):
        chat_model(live).bind_tools([tool]).invoke(TALK)
