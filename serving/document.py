"""The OpenAPI document: what FastAPI derives from the routes, and what it cannot know.

Owns which statuses and headers a route can give; knows no handler. Requests come from the models in
``schema``, answers from ``shapes``.
"""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serving.schema import ChatBody, CompletionBody, PromoteBody
from serving.shapes import TEXT, Json, answer_schemas, event_schema, ref

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
    503: "The model is loading, the engine is stuck, the server is shutting down, or the state "
    "folder cannot be written (admin routes).",
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
    "/admin/trainer/pause": (400, 401, 403, 415, 503),
    "/admin/trainer/resume": (400, 401, 403, 415, 503),
}
AT_THE_DOOR = (400, 401, 403)


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


CHUNKS = {"/v1/completions": "CompletionChunk", "/v1/chat/completions": "ChatChunk"}
REQUEST_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "required": False,
    "description": "Becomes the answer's id; up to 128 printable ASCII characters without a space.",
    "schema": {"type": "string", "pattern": "^[!-~]{0,128}$"},
}
ID_HEADER = {"X-Request-Id": {"required": True, "schema": TEXT}}
RETRY_HEADER = {"Retry-After": {"required": True, "schema": {"type": "string"}}}
RETRY_STATUSES = (429, 503)  # with Retry-After, in seconds


def body_schema(model: type[BaseModel]) -> Json:
    """What a route that reads its body itself adds to its operation."""
    content = {"application/json": {"schema": ref(model.__name__)}}
    return {"requestBody": {"required": True, "content": content}}


def _response(text: str, content: Json, headers: Json | None = None) -> Json:
    return {"description": text, "content": content, "headers": ID_HEADER | (headers or {})}


def _responses(path: str) -> Json:
    if path == "/metrics":
        good: Json = {"text/plain": {"schema": TEXT}}
    else:
        good = {"application/json": {"schema": ref(ANSWERS[path])}}
    if path in CHUNKS:
        # Of a stream, the schema is that of each event (so tools read it before OpenAPI 3.2).
        good["text/event-stream"] = {"schema": event_schema(CHUNKS[path])}
    responses = {"200": _response("The answer.", good)}
    for status in STATUSES.get(path, AT_THE_DOOR):
        content = {"application/json": {"schema": ref("Error")}}
        headers = RETRY_HEADER if status in RETRY_STATUSES else None
        responses[str(status)] = _response(STATUS_TEXTS[status], content, headers)
    if path == "/ready":
        status_body = {"application/json": {"schema": ref("Status")}}
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
            operation["parameters"] = [*operation.get("parameters", ()), REQUEST_ID]
            if with_keys and clean not in ("/health", "/ready"):
                operation["security"] = [{"key": []}]
    document["paths"] = paths
    document["components"] = {"schemas": _request_schemas() | answer_schemas()}
    if with_keys:
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"key": scheme}
    return document
