"""The OpenAPI document: what FastAPI derives from the routes, and what it cannot know.

Owns the shapes of answers and errors as JSON schemas, and which statuses a route can give; knows no
handler. Requests come from the models in ``schema``.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serving.schema import ChatBody, CompletionBody, PromoteBody

Json = dict[str, Any]

STATUS_TEXTS = {
    400: "A field is wrong, unsupported, or does not fit the context; `param` names it.",
    401: "The key is missing or wrong.",
    403: "This key, Host or Origin may not call.",
    404: "No such model or route.",
    408: "The body or the answer took longer than the server allows.",
    413: "The body is larger than serving.max_body_bytes.",
    415: "The body is not application/json.",
    429: "The queue is full; Retry-After says for how long.",
    500: "The engine failed on this request.",
    503: "The model is loading, the engine is stuck, or the server is shutting down.",
}
GENERATION = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503)
# Beside 200, by path; everything else can be refused at the door only.
STATUSES = {
    "/health": (400, 403, 415),
    "/ready": (400, 403, 415),
    "/v1/completions": GENERATION,
    "/v1/chat/completions": GENERATION,
    "/v1/models": (400, 401, 403, 503),
    "/v1/models/{model_id}": (400, 401, 403, 404, 503),
    "/admin/adapters": (400, 401, 403, 503),
    "/admin/adapters/promote": (400, 401, 403, 408, 413, 415, 503),
    "/admin/adapters/rollback": (400, 401, 403, 415, 503),
    "/admin/trainer/pause": (400, 401, 403, 415, 500, 503),
    "/admin/trainer/resume": (400, 401, 403, 415, 500, 503),
}
AT_THE_DOOR = (400, 401, 403)


def _object(properties: Json, required: list[str] | None = None) -> Json:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names}


def _array(items: Json) -> Json:
    return {"type": "array", "items": items}


def _nullable(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
FINISH = {"enum": ["stop", "length"]}
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


def _choice(own: Json) -> Json:
    base = {"index": WHOLE, "logprobs": _nullable({"type": "object"}), "finish_reason": FINISH}
    return _object(base | own | EXTRAS, [*base, *own])


def _answer(choice: str) -> Json:
    tail = {"choices": _array(_ref(choice)), "usage": _ref("Usage"), "dvi": _ref("Speculation")}
    return _object(HEAD | tail | {"prompt_token_ids": _array(WHOLE)}, [*HEAD, *tail])


def _answer_schemas() -> Json:
    error = {"message": TEXT, "type": TEXT, "param": _nullable(TEXT), "code": _nullable(TEXT)}
    usage = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), WHOLE)
    details = {
        "prompt_tokens_details": _object({"cached_tokens": WHOLE}),
        "completion_tokens_details": {"type": "object"},
    }
    message = {"role": {"const": "assistant"}, "content": TEXT, "refusal": {"type": "null"}}
    card = {"id": TEXT, "object": {"const": "model"}, "created": WHOLE, "owned_by": TEXT}
    return {
        "Error": _object({"error": _object(error)}),
        "Usage": _object(usage | details, [*usage, "prompt_tokens_details"]),
        "Rates": _object(RATES),
        "Speculation": _object(
            RATES
            | {
                "by_source": _object({"neural": _ref("Rates"), "memory": _ref("Rates")}),
                "adapter_versions": _array(WHOLE),
                "seed": WHOLE,
                "ignored_fields": _array(TEXT),
            }
        ),
        "CompletionChoice": _choice({"text": TEXT}),
        "CompletionAnswer": _answer("CompletionChoice"),
        "ChatChoice": _choice({"message": _object(message)}),
        "ChatAnswer": _answer("ChatChoice"),
        "ModelCard": _object(card | {"max_model_len": WHOLE}),
        "ModelList": _object({"object": {"const": "list"}, "data": _array(_ref("ModelCard"))}),
        "Status": _object({"status": TEXT}),
        "Version": _object({"version": TEXT}),
        "AdapterInService": _object({"current": WHOLE}),
        "Adapters": {"type": "object"},
        "TrainerPause": _object({"paused": {"type": "boolean"}}),
    }


ANSWERS = {
    "/health": "Status",
    "/ready": "Status",
    "/version": "Version",
    "/v1/completions": "CompletionAnswer",
    "/v1/chat/completions": "ChatAnswer",
    "/v1/models": "ModelList",
    "/v1/models/{model_id}": "ModelCard",
    "/admin/adapters": "Adapters",
    "/admin/adapters/promote": "AdapterInService",
    "/admin/adapters/rollback": "AdapterInService",
    "/admin/trainer/pause": "TrainerPause",
    "/admin/trainer/resume": "TrainerPause",
}


def body_schema(model: type[BaseModel]) -> Json:
    """What a route that reads its body itself adds to its operation."""
    content = {"application/json": {"schema": _ref(model.__name__)}}
    return {"requestBody": {"required": True, "content": content}}


def _response(text: str, content: Json) -> Json:
    return {"description": text, "content": content}


def _responses(path: str) -> Json:
    if path == "/metrics":
        good: Json = {"text/plain": {"schema": TEXT}}
    else:
        good = {"application/json": {"schema": _ref(ANSWERS[path])}}
    if path in ("/v1/completions", "/v1/chat/completions"):
        good["text/event-stream"] = {"schema": TEXT}
    responses = {"200": _response("The answer.", good)}
    for status in STATUSES.get(path, AT_THE_DOOR):
        content = {"application/json": {"schema": _ref("Error")}}
        responses[str(status)] = _response(STATUS_TEXTS[status], content)
    if path == "/ready":
        status_body = {"application/json": {"schema": _ref("Status")}}
        responses["503"] = _response("`status` says why not.", status_body)
    return responses


def _request_schemas() -> Json:
    parts: Json = {}
    for model in (CompletionBody, ChatBody, PromoteBody):
        own = model.model_json_schema(ref_template="#/components/schemas/{model}")
        parts.update(own.pop("$defs", {}))
        parts[model.__name__] = own
    return parts


def make_document(app: FastAPI, *, with_keys: bool) -> Json:
    """The whole document of an app whose routes are all added."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    paths: Json = {}
    for path, operations in document["paths"].items():
        clean = path.replace("{model_id:path}", "{model_id}")
        paths[clean] = operations
        for operation in operations.values():
            operation["responses"] = _responses(clean)
            if with_keys and clean not in ("/health", "/ready"):
                operation["security"] = [{"key": []}]
    document["paths"] = paths
    document["components"] = {"schemas": _request_schemas() | _answer_schemas()}
    if with_keys:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"key": scheme}
    return document
