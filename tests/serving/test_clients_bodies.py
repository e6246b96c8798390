"""Bodies as real clients send them: nulls, defaults, unknown keys, lists of parts; each a 200.

The shapes are those of the clients' requests, written down by hand; values are shortened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving.fakes import FakeServer, fake_server

USER = {"role": "user", "content": "hi"}
SYSTEM = {"role": "system", "content": "be brief"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
NULLED = (
    "temperature",
    "top_p",
    "n",
    "stop",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "seed",
    "user",
    "stream",
    "stream_options",
    "response_format",
    "presence_penalty",
    "frequency_penalty",
    "store",
    "metadata",
    "tools",
    "tool_choice",
    "reasoning_effort",
    "modalities",
    "audio",
    "prediction",
    "verbosity",
    "dvi",
)
TURNS = [SYSTEM, USER, {"role": "assistant", "content": "hello"}, USER]
CHAT: dict[str, dict[str, Any]] = {
    "openai": {"model": "tiny", "messages": [USER]},
    "openai stream": {"model": "tiny", "messages": [USER], "stream": True},
    "openai usage": {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}},
    "openai parse": {
        "messages": [USER],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "Step", "strict": True, "schema": {"type": "object"}},
        },
    },
    "openai logprobs": {"messages": [USER], "logprobs": True, "top_logprobs": 5},
    "openai o-series": {"messages": [{"role": "developer", "content": "x"}, USER], "store": False},
    "openai hints": {
        "messages": [USER],
        "service_tier": "auto",
        "safety_identifier": "u",
        "prompt_cache_key": "k",
        "metadata": {"run": "1"},
        "user": "u",
    },
    "openai prediction": {"messages": [USER], "prediction": {"type": "content", "content": "hi"}},
    "langchain": {
        "messages": TURNS,
        "model": "tiny",
        "stream": False,
        "temperature": 0.7,
        "n": 1,
        "max_completion_tokens": None,
        "stop": None,
    },
    "langchain tools off": {"messages": [PARTS], "tools": [], "tool_choice": "none"},
    "langchain named": {"messages": [USER | {"name": "ann"}], "parallel_tool_calls": False},
    "litellm": {
        "model": "tiny",
        "messages": [USER | {"tool_calls": None, "function_call": None}],
        "extra_body": {},
        "max_retries": 2,
        "tools": None,
        "logit_bias": {},
        "frequency_penalty": 0,
    },
    "litellm proxied": {"messages": [PARTS], "litellm_call_id": "x", "metadata": {}},
    "llamaindex": {"messages": [USER | {"additional_kwargs": {}}], "temperature": 0.1},
    "lm-eval chat": {
        "messages": [{"role": "user", "content": "Q", "type": "text"}],
        "model": "tiny",
        "max_tokens": 8,
        "temperature": 0,
        "stop": ["\n\n", "Q:"],
        "seed": 1234,
    },
    "vllm bench chat": {
        "model": "tiny",
        "messages": [PARTS],
        "max_completion_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    },
    "vllm extras": {
        "messages": [USER],
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "length_penalty": 1.0,
        "spaces_between_special_tokens": True,
        "stop_token_ids": [],
        "include_stop_str_in_output": False,
        "add_generation_prompt": True,
        "continue_final_message": False,
        "guided_json": None,
        "priority": 0,
        "structured_outputs": None,
    },
    "vllm choice": {"messages": [USER], "structured_outputs": {"choice": ["yes", "no"]}},
    "vllm continue": {
        "messages": [USER, {"role": "assistant", "content": "The"}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    },
    "sglang": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}, "top_k": 20},
    "continue.dev": {
        "messages": TURNS,
        "max_tokens": 60,
        "stream": True,
        "stop": ["<|im_end|>"],
        "prompt_cache_key": "p",
    },
    "zed": {"messages": [PARTS], "stream": True, "temperature": 1.0, "stop": [], "max_tokens": 50},
    "cline": {
        "messages": [SYSTEM, PARTS],
        "temperature": 0,
        "stream": True,
        "stream_options": None,
    },
    "open webui": {"messages": [USER], "stream": True, "chat_id": "c", "session_id": "s"},
    "js client": {"messages": [USER], "max_tokens": 16.0, "seed": 3.0, "n": 1.0},
    "an answer sent back": {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "x",
                "refusal": None,
                "annotations": [],
                "audio": None,
                "reasoning_content": None,
                "tool_calls": [],
            },
            USER,
        ]
    },
    "assistant without content": {"messages": [USER, {"role": "assistant", "content": None}, USER]},
    "tool result": {"messages": [USER, {"role": "tool", "content": "4", "tool_call_id": "c"}]},
    "null everywhere": {"messages": [USER]} | dict.fromkeys(NULLED),
}
TEXT: dict[str, dict[str, Any]] = {
    "openai": {"model": "tiny", "prompt": "hi"},
    "openai legacy": {
        "prompt": ["hi", "there"],
        "suffix": None,
        "max_tokens": 4,
        "temperature": 0.5,
        "top_p": 1,
        "n": 1,
        "logprobs": None,
        "echo": False,
        "stop": None,
        "best_of": 1,
        "logit_bias": {"50": -100},
        "user": "",
    },
    "langchain llm": {
        "prompt": ["hi"],
        "max_tokens": 10,
        "temperature": 0.7,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "n": 1,
        "top_p": 1,
        "seed": None,
        "logprobs": None,
    },
    "lm-eval loglikelihood": {
        "prompt": [[5, 6, 7], [8, 9]],
        "model": "tiny",
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    },
    "lm-eval older": {"prompt": [[5, 6]], "max_tokens": 0, "logprobs": 10, "echo": True},
    "lm-eval generate": {
        "prompt": ["Q: 1+1"],
        "max_tokens": 8,
        "temperature": 0.0,
        "stop": ["\n"],
        "seed": 1,
    },
    "vllm bench": {
        "model": "tiny",
        "prompt": "hi",
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "max_tokens": 8,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "min_tokens": 8,
        "request_id": None,
    },
    "guidellm": {"prompt": "hi", "max_tokens": 8, "ignore_eos": True, "stop": None, "stream": True},
    "ids": {"prompt": [1, 2, 3], "return_token_ids": True, "add_special_tokens": False},
    "vim plugin": {
        "prompt": "def f(",
        "max_tokens": 16,
        "temperature": 0.2,
        "stop": ["\n\n"],
        "n": 2,
    },
    "litellm text": {"prompt": "hi", "extra_headers": {}, "timeout": 600, "stream": False},
    "ours": {
        "prompt": "hi",
        "metadata": {"domain": "sql"},
        "dvi": {"speculation": True, "max_draft_len": None, "log": False, "detail": True},
    },
    "regex": {"prompt": "hi", "structured_outputs": {"regex": "[0-9]+", "choice": None}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    with fake_server() as running:
        yield running


@pytest.mark.parametrize("client", CHAT)
def test_chat_bodies_of_real_clients_are_answered(server: FakeServer, client: str) -> None:
    answer = server.http.post("/v1/chat/completions", json=CHAT[client])
    assert answer.status_code == 200, answer.text
    assert "Hello" in answer.text


@pytest.mark.parametrize("client", TEXT)
def test_completion_bodies_of_real_clients_are_answered(server: FakeServer, client: str) -> None:
    answer = server.http.post("/v1/completions", json=TEXT[client])
    assert answer.status_code == 200, answer.text
    assert "Hello" in answer.text


def test_there_are_forty_of_them_and_unknown_keys_are_listed(server: FakeServer) -> None:
    assert len(CHAT) + len(TEXT) >= 40
    listed = server.http.post("/v1/chat/completions", json=CHAT["llamaindex"]).json()["dvi"]
    assert listed["ignored_fields"] == ["messages[0].additional_kwargs"]
    listed = server.http.post("/v1/completions", json=TEXT["litellm text"]).json()["dvi"]
    assert listed["ignored_fields"] == ["extra_headers", "timeout"]
