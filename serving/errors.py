"""Errors as OpenAI's clients read them: one JSON form, status codes, a closed set of codes.

Knows nothing of what the server does; routes raise ``ApiError`` and the handlers here answer it.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

# Paths people try because OpenAI has them, and the path that does the job here.
ROUTE_HINTS = {
    "/v1/responses": "/v1/chat/completions",
    "/v1/engines": "/v1/models",
    "/chat/completions": "/v1/chat/completions",
    "/completions": "/v1/completions",
    "/models": "/v1/models",
}
NO_SUCH_SERVICE = ("/v1/embeddings", "/v1/audio", "/v1/images", "/v1/moderations", "/v1/files")


class ApiError(Exception):
    """One refused or failed request; ``headers`` go out with the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


def invalid(message: str, param: str | None, code: str | None = None) -> ApiError:
    """A 400 that names the field."""
    return ApiError(400, message, param=param, code=code)


def queue_full(why: str, retry_after_s: float) -> ApiError:
    """A 429; the wait is cut to 1..60 s (OpenAI's client gives up above 120)."""
    wait_s = min(60, max(1, round(retry_after_s)))
    return ApiError(
        429,
        f"The queue is full: {why}. Try again in {wait_s} s.",
        code="queue_full",
        headers={"Retry-After": str(wait_s)},
    )


def unavailable(message: str, code: str) -> ApiError:
    """A 503: loading, draining or stuck, or no place to write to."""
    return ApiError(503, message, code=code, headers={"Retry-After": "5"})


def out_of_storage(error: OSError) -> ApiError:
    """A 503: the disk is full, read-only, gone or in use; nothing was changed. Names no path."""
    why = error.strerror or type(error).__name__
    return unavailable(f"The state folder cannot be used now: {why}.", "storage_unavailable")


def out_of_time() -> ApiError:
    """A 408 for a request past serving.max_request_s; a second try would take as long."""
    return ApiError(
        408,
        "The request took longer than this server allows. Ask for fewer tokens.",
        code="request_timeout",
        headers={"x-should-retry": "false"},
    )


def error_type(status: int) -> str:
    """OpenAI's word for a class of status codes."""
    names = {
        401: "authentication_error",
        403: "permission_error",
        408: "timeout_error",
        429: "rate_limit_error",
    }
    if status in names:
        return names[status]
    return "invalid_request_error" if status < 500 else "server_error"


def error_body(error: ApiError) -> dict[str, Any]:
    """``{"error": {...}}``; also the payload of an SSE error event."""
    return {
        "error": {
            "message": error.message,
            "type": error_type(error.status),
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: ApiError) -> JSONResponse:
    """The whole HTTP answer of ``error``."""
    return JSONResponse(error_body(error), error.status, headers=error.headers)


def route_error(method: str, path: str, status: int) -> ApiError:
    """404 and 405 in OpenAI's form; well-known foreign routes name the one to use."""
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        return ApiError(status, f"{path} does not take {method}.")
    clean = path.rstrip("/")
    message = f"There is no route {method} {path}."
    if clean in ROUTE_HINTS:
        message += f" Use {ROUTE_HINTS[clean]}."
    elif clean.startswith(NO_SUCH_SERVICE):
        message += " This server generates text: use /v1/chat/completions or /v1/completions."
    return ApiError(status, message, code="route_not_found")


def install_handlers(app: FastAPI) -> None:
    """Answer ApiError, unknown routes and unforeseen faults in one form."""

    async def on_api_error(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ApiError)
        return error_response(error)

    async def on_http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code in (404, 405):
            answer = route_error(request.method, request.url.path, error.status_code)
            answer.headers = dict(error.headers or {})  # Allow, of a 405
            return error_response(answer)
        return error_response(ApiError(error.status_code, str(error.detail)))

    async def on_fault(_request: Request, _error: Exception) -> JSONResponse:
        # The traceback goes to the log (Starlette re-raises); the text may hold content.
        return error_response(ApiError(500, "The server failed on this request."))

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, on_fault)
