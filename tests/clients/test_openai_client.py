"""The openai package as people use it, against a live server on the tiny model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.live import Live, live_server, tiny_config, wait_for

PROMPT = "SELECT name FROM orders"
CHAT: Any = [{"role": "user", "content": "Thank you"}]
KEY = "sk-tiny"


@pytest.fixture(scope="module")
def live(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("openai")
    config = tiny_config(tiny_model, folder / "state")
    serving = replace(config.serving, api_key=KEY, max_batch_size=2, max_queue=1)
    with live_server(replace(config, serving=serving), folder) as running:
        running.http.headers["authorization"] = f"Bearer {KEY}"
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.server.url + "/v1", api_key=KEY, max_retries=0) as made:
        yield made


def async_client(live: Live, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=live.server.url + "/v1", api_key=KEY, **({"max_retries": 0} | options)
    )


def test_async_answers_equal_sync_ones_whole_and_streamed(
    live: Live, client: openai.OpenAI
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "max_tokens": 12, "seed": 3}
    chat = client.chat.completions.create(messages=CHAT, **asked)
    text = client.completions.create(prompt=PROMPT, **asked)

    async def ask() -> tuple[str, str, str]:
        async with async_client(live) as made:
            whole = await made.chat.completions.create(messages=CHAT, **asked)
            stream = await made.chat.completions.create(messages=CHAT, stream=True, **asked)
            parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            lines = await made.completions.create(prompt=PROMPT, stream=True, **asked)
            texts = [chunk.choices[0].text async for chunk in lines]
        return whole.choices[0].message.content or "", "".join(parts), "".join(texts)

    expected = chat.choices[0].message.content
    assert asyncio.run(ask()) == (expected, expected, text.choices[0].text)


def test_raw_responses_carry_the_id_and_the_extension(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=6,
        extra_headers={"X-Request-Id": "mine"},
        extra_body={"dvi": {"speculation": False, "detail": True}, "top_k": 5},
    )
    parsed = raw.parse()
    assert raw.headers["x-request-id"] == parsed.id == "mine"
    assert parsed._request_id == "mine"
    assert parsed.model_extra is not None
    assert parsed.model_extra["dvi"]["proposed"] == 0
    assert parsed.choices[0].model_extra is not None
    num_tokens = parsed.usage.completion_tokens if parsed.usage else 0
    assert parsed.choices[0].model_extra["dvi"]["sources"] == ["target"] * num_tokens


def test_errors_are_the_exceptions_that_people_catch(live: Live, client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as refused:
        client.with_options(api_key="wrong").models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4", prompt="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=CHAT, temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="x", max_tokens=10_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="tiny", input="x")
    assert wrong.value.request_id == wrong.value.response.headers["x-request-id"]


def test_a_full_queue_is_a_rate_limit_that_the_client_waits_out(live: Live) -> None:
    # Two rows and one place in the queue: the fourth choice is one too many.
    with openai.OpenAI(base_url=live.server.url + "/v1", api_key=KEY, max_retries=0) as client:
        full: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "n": 3, "stream": True}
        body = {"ignore_eos": True}
        stream = client.completions.create(max_tokens=200, extra_body=body, **full)
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=1, n=3)
        assert refused.value.code == "queue_full"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60
        stream.close()
        patient = client.with_options(max_retries=3)
        answer = patient.completions.create(model="tiny", prompt=PROMPT, max_tokens=1, n=3)
        assert len(answer.choices) == 3


def test_faults_of_the_caller_are_tried_once_by_a_client_that_retries(live: Live) -> None:
    rejected = "dvi_requests_total{rejected}"
    before = live.metrics()[rejected]
    bad: list[dict[str, Any]] = [
        {"temperature": -1},
        {"max_tokens": 10_000},
        {"n": 100_000},
        {"logit_bias": {"999999": 1}},
    ]
    with openai.OpenAI(base_url=live.server.url + "/v1", api_key=KEY, max_retries=5) as client:
        for body in bad:
            with pytest.raises(openai.BadRequestError):
                client.completions.create(**({"model": "tiny", "prompt": "x"} | body))
    assert live.metrics()[rejected] == before + len(bad)


def test_choices_logprobs_and_stops_arrive_in_the_clients_types(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="tiny",
        messages=CHAT,
        max_completion_tokens=8,
        n=3,
        logprobs=True,
        top_logprobs=2,
        seed=5,
        user="ann",
        metadata={"domain": "mail"},
    )
    assert [choice.index for choice in chat.choices] == [0, 1, 2]
    total = 0
    for choice in chat.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        total += len(choice.logprobs.content)
        for entry in choice.logprobs.content:
            assert len(entry.top_logprobs) == 2
            assert entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    assert chat.usage is not None
    assert chat.usage.completion_tokens == total
    free = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=20, seed=2)
    text = free.choices[0].text
    stop = text[len(text) // 2 :][:2]
    cut = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=20, seed=2, stop=[stop], logprobs=1
    )
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].logprobs is not None
    assert cut.usage is not None
    assert len(cut.choices[0].logprobs.tokens or ()) == cut.usage.completion_tokens


def test_a_schema_is_kept_and_parses(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "ok": {"type": "boolean"}},
        "required": ["kind", "ok"],
        "additionalProperties": False,
    }
    for seed in range(3):
        chat = client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            seed=seed,
            max_tokens=60,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            },
            # A random model likes white space; a real one is told by its prompt.
            extra_body={"temperature": 0.7},
        )
        if chat.choices[0].finish_reason == "stop":
            answer = json.loads(chat.choices[0].message.content or "")
            assert answer["kind"] in ("a", "b")
            assert isinstance(answer["ok"], bool)


@pytest.mark.parametrize("is_async", [False, True])
def test_closing_a_stream_frees_its_row(live: Live, is_async: bool) -> None:
    asked: dict[str, Any] = {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": 220,
        "stream": True,
        "extra_body": {"ignore_eos": True},
    }
    cancelled = "dvi_requests_total{cancelled}"
    before = live.metrics()[cancelled]

    async def leave() -> None:
        async with async_client(live) as made:
            stream = await made.completions.create(**asked)
            await anext(aiter(stream))
            await stream.close()

    if is_async:
        asyncio.run(leave())
    else:
        with openai.OpenAI(base_url=live.server.url + "/v1", api_key=KEY) as made:
            stream = made.completions.create(**asked)
            next(iter(stream))
            stream.close()
    assert wait_for(lambda: live.metrics()[cancelled] == before + 1)
    after = live.metrics()
    assert after["dvi_running_requests"] == 0
    assert live.metrics()["dvi_generated_tokens_total"] == after["dvi_generated_tokens_total"]
