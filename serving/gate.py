"""The outermost layer of the app: a request id for everything, and the check of who may call.

Owns the ``x-request-id`` header; knows no routes. Plain ASGI, so that streams pass untouched.
"""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.auth import AccessRules, check_access
from serving.errors import ApiError, error_response, invalid

ID_PATTERN = re.compile(r"[\x21-\x7e]{1,128}")
ID_PREFIXES = {"/v1/completions": "cmpl-", "/v1/chat/completions": "chatcmpl-"}


def _request_id(path: str, given: str) -> str:
    """The client's own id if it can be one, else a new one."""
    if ID_PATTERN.fullmatch(given):
        return given
    return ID_PREFIXES.get(path, "req-") + uuid.uuid4().hex


def _check_id(given: str) -> None:
    if given and not ID_PATTERN.fullmatch(given):
        raise invalid("X-Request-Id must be 1 to 128 printable ASCII characters.", "X-Request-Id")


class Gate:
    """Lets a request through to ``app`` or answers it."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        given = headers.get("x-request-id", "")
        request_id = _request_id(path, given)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            _check_id(given)
            api_key = check_access(self._rules, scope["method"], path, headers)
        except ApiError as error:
            await error_response(error)(scope, receive, send_with_id)
            return
        scope.setdefault("state", {}).update(request_id=request_id, api_key=api_key)
        await self._app(scope, receive, send_with_id)
