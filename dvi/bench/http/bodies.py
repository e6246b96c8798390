"""What the bench sends: requests of the streams, a long prompt, and what a hostile client would.

Owns the wire form; imports no torch, since client processes build bodies too.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

Json = dict[str, Any]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BIG_BODY_BYTES = 1 << 20
SCHEMA_BYTES = 200_000
NUM_ENUM = 8  # values of each property of the big schema
# Ids of a long prompt: plain text in every vocabulary of a few hundred ids and more.
FIRST_ID, NUM_IDS = 100, 100


def streamed(row: Mapping[str, Any], model: str, max_tokens: int, seed: int) -> Json:
    """One greedy streaming request of a prompt row, with ids in every chunk and no early end."""
    path = CHAT if "messages" in row else COMPLETIONS
    prompt = {key: row[key] for key in ("messages", "prompt") if key in row}
    body = {
        **prompt,
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0.0,
        "seed": seed,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    return {"path": path, "body": body}


def long_prompt(num_tokens: int, model: str) -> Json:
    """A streaming request whose prompt has so many tokens."""
    ids = [FIRST_ID + i % NUM_IDS for i in range(num_tokens)]
    return streamed({"prompt": ids}, model, 2, 0)


def big_schema(number: int) -> Json:
    """A JSON schema of about SCHEMA_BYTES; another number is another one, so none is cached."""
    size = 0
    properties: Json = {}
    while size < SCHEMA_BYTES:
        name = f"property_{number}_{len(properties)}"
        values = [f"value_{len(properties)}_{i}" for i in range(NUM_ENUM)]
        properties[name] = {"type": "string", "enum": values}
        size += len(json.dumps({name: properties[name]}))
    return {"type": "object", "properties": properties, "required": list(properties)}


def schema_request(number: int, model: str) -> Json:
    """A valid request that makes the server compile a big schema."""
    asked = {"type": "json_schema", "json_schema": {"name": "big", "schema": big_schema(number)}}
    body = {"prompt": "List them.", "model": model, "max_tokens": 4, "response_format": asked}
    return {"path": COMPLETIONS, "body": body}


def schema_bodies(model: str) -> Iterator[bytes]:
    """Those bodies without end, each with another schema, at the cost of making one of them."""
    first = json.dumps(schema_request(0, model)["body"]).encode()
    for number in itertools.count():
        yield first.replace(b'"property_0_', b'"property_%d_' % number)


def big_requests(model: str) -> tuple[Json, ...]:
    """Bodies of about BIG_BODY_BYTES: one text, messages, ids, and keys that nobody knows."""
    words = "The quick brown fox jumps over it. " * (BIG_BODY_BYTES // 35)
    messages = [{"role": "user", "content": f"hello {i}"} for i in range(BIG_BODY_BYTES // 42)]
    ids = [FIRST_ID + i % NUM_IDS for i in range(BIG_BODY_BYTES // 5)]
    keys = {f"key_{i:06d}": "x" * 30 for i in range(BIG_BODY_BYTES // 48)}
    asked = {"model": model, "max_tokens": 1}
    return (
        {"path": CHAT, "body": {**asked, "messages": [{"role": "user", "content": words}]}},
        {"path": CHAT, "body": {**asked, "messages": messages}},
        {"path": COMPLETIONS, "body": {**asked, "prompt": ids}},
        {"path": COMPLETIONS, "body": {**asked, "prompt": "hello", **keys}},
    )
