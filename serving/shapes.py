"""The shapes of what leaves the server, as JSON schemas: answers, chunks of a stream, errors.

Knows no route, no status and no handler.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def _object(properties: Json, required: list[str] | None = None) -> Json:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> Json:
    """A reference to a named shape."""
    return {"$ref": f"#/components/schemas/{name}"}


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
FINISH = {"enum": ["stop", "length", "tool_calls"]}  # the last one on chat only
RATES = {
    **dict.fromkeys(("rounds", "proposed", "judged", "accepted"), WHOLE),
    **dict.fromkeys(
        ("acceptance_rate", "draft_efficiency", "mean_accepted_length"), _nullable(NUMBER)
    ),
}
EXTRAS = {"token_ids": _array(WHOLE), "prompt_token_ids": _array(WHOLE), "dvi": {"type": "object"}}
HEAD = {
    "id": TEXT,
    "object": TEXT,
    "created": WHOLE,
    "model": TEXT,
    "system_fingerprint": TEXT,
}


def _choice(own: Json, finish: Json = FINISH) -> Json:
    base = {"index": WHOLE, "logprobs": _nullable({"type": "object"}), "finish_reason": finish}
    return _object(base | own | EXTRAS, [*base, *own])


def _answer(choice: str) -> Json:
    tail = {"choices": _array(ref(choice)), "usage": ref("Usage"), "dvi": ref("Speculation")}
    return _object(HEAD | tail | {"prompt_token_ids": _array(WHOLE)}, [*HEAD, *tail])


def _chunk(choice: str) -> Json:
    """``usage`` is there where it was asked for, ``dvi`` in the last chunk."""
    tail = {"usage": _nullable(ref("Usage")), "dvi": ref("Speculation")}
    shape = HEAD | {"choices": _array(ref(choice)), "prompt_token_ids": _array(WHOLE)} | tail
    return _object(shape, [*HEAD, "choices"])


def _chunk_schemas() -> Json:
    finish = _nullable(FINISH)
    function = _object({"name": TEXT, "arguments": TEXT}, ["arguments"])
    call = {"index": WHOLE, "id": TEXT, "type": {"const": "function"}, "function": function}
    calls = _array(_object(call, ["index", "function"]))
    shape = {"role": {"const": "assistant"}, "content": TEXT, "tool_calls": calls}
    delta = _object(shape, [])
    return {
        "CompletionChunkChoice": _choice({"text": TEXT}, finish),
        "CompletionChunk": _chunk("CompletionChunkChoice"),
        "ChatChunkChoice": _choice({"delta": delta}, finish),
        "ChatChunk": _chunk("ChatChunkChoice"),
    }


def event_schema(chunk: str) -> Json:
    """One server-sent event: a chunk, an error that ends the stream, or the mark of its end."""
    data = {"anyOf": [ref(chunk), ref("Error")]}
    text = {**TEXT, "contentMediaType": "application/json", "contentSchema": data}
    return _object({"data": {"anyOf": [{"const": "[DONE]"}, text]}})


def answer_schemas() -> Json:
    """Everything by its name under ``#/components/schemas``."""
    error = {"message": TEXT, "type": TEXT, "param": _nullable(TEXT), "code": _nullable(TEXT)}
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), WHOLE)
    details = {
        "prompt_tokens_details": _object({"cached_tokens": WHOLE}),
        "completion_tokens_details": {"type": "object"},
    }
    message = {
        "role": {"const": "assistant"},
        "content": _nullable(TEXT),
        "refusal": {"type": "null"},
    }
    call = {
        "id": TEXT,
        "type": {"const": "function"},
        "function": _object({"name": TEXT, "arguments": TEXT}),
    }
    calls = {"tool_calls": _array(_object(call))}
    card = {"id": TEXT, "object": {"const": "model"}, "created": WHOLE, "owned_by": TEXT}
    return {
        "Error": _object({"error": _object(error)}),
        "Usage": _object(usage | details, [*usage, "prompt_tokens_details"]),
        "Rates": _object(RATES),
        "Speculation": _object(
            RATES
            | {
                "by_source": _object({"neural": ref("Rates"), "memory": ref("Rates")}),
                "adapter_versions": _array(WHOLE),
                "seed": WHOLE,
                "ignored_fields": _array(TEXT),
            }
        ),
        "CompletionChoice": _choice({"text": TEXT}),
        "CompletionAnswer": _answer("CompletionChoice"),
        "ChatChoice": _choice({"message": _object(message | calls, [*message])}),
        "ChatAnswer": _answer("ChatChoice"),
        "ModelCard": _object(card | {"max_model_len": WHOLE}),
        "ModelList": _object({"object": {"const": "list"}, "data": _array(ref("ModelCard"))}),
        "Status": _object({"status": TEXT}),
        "Version": _object({"version": TEXT}),
        "AdapterInService": _object({"current": WHOLE}),
        "Adapters": {"type": "object"},
        "TrainerPause": _object({"paused": {"type": "boolean"}}),
    } | _chunk_schemas()
