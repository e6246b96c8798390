"""From the bytes of a POST to a checked body, or a 400 that names every field that is wrong.

Owns the translation of pydantic's errors; knows nothing of what a field means.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from serving.body import Keys
from serving.errors import ApiError, invalid
from serving.schema import ChatBody, CompletionBody

BodyKind = type[CompletionBody] | type[ChatBody]
BodyT = TypeVar("BodyT", bound=BaseModel)
READ_TIMEOUT_S = 60.0
MAX_NAMED = 10  # complaints that one answer lists
# Items of a list, in a body that is refused anyway; longer ones are passed over.
MAX_LOOKED_AT = 2048


@dataclass(frozen=True, slots=True)
class Parsed:
    """A generation body and the keys in it that nobody defines."""

    body: CompletionBody | ChatBody
    ignored_fields: tuple[str, ...]


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body's bytes. Raises 413, 408 and 400."""
    too_large = ApiError(413, f"The body is larger than {max_bytes} bytes.", code="body_too_large")
    told = request.headers.get("content-length", "")
    if told.isdecimal() and int(told[:19]) > max_bytes:
        raise too_large
    chunks = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.stream():
                chunks += chunk
                if len(chunks) > max_bytes:
                    raise too_large
    except TimeoutError as error:
        raise ApiError(408, "The body did not arrive in time.", code="body_timeout") from error
    except ClientDisconnect as error:
        raise invalid("The connection closed before the body was complete.", None) from error
    return bytes(chunks)


def as_json(raw: bytes) -> Any:
    """The body as JSON. Raises a 400.

    Pydantic's parser is several times as fast as Python's; while one runs, no other thread does.
    """
    try:
        return from_json(raw.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"The body is no JSON in UTF-8 that can be read: {error}.", None) from error


def _param(location: tuple[int | str, ...]) -> str | None:
    """``messages[0].content`` of ("messages", 0, "content", "list[TextPart]", 0, "type")."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in ("str", "int", "[key]") or "[" in part or "-" in part or part[:1].isupper():
            break  # the tag of a union's member, not a key
        else:
            path += f".{part}" if path else part
    return path or None


def _complaints(error: ValidationError) -> dict[str | None, str]:
    """One complaint a field; of a union all members complain, the deepest is the closest."""
    worst: dict[str | None, tuple[int, str]] = {}
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        param, text = _param(item["loc"]), item["msg"].removeprefix("Value error, ")
        if param is None and ": " in text:
            param, text = text.split(": ", 1)
        if param not in worst or len(item["loc"]) > worst[param][0]:
            worst[param] = (len(item["loc"]), text)
    return {param: text for param, (_, text) in worst.items()}


def _all_wrong(complaints: Mapping[str | None, str], refused: Iterable[str] = ()) -> ApiError:
    """One 400 that names everything; ``param`` is the first."""
    params: list[str | None] = [*refused, *complaints]
    texts = [f"{name} is not supported by this server" for name in refused]
    texts += [f"{param or 'body'}: {text}" for param, text in complaints.items()]
    if len(texts) > MAX_NAMED:
        texts[MAX_NAMED:] = [f"and {len(texts) - MAX_NAMED} more"]
    code = "unsupported_parameter" if not complaints else None
    return invalid("; ".join(texts) + ".", params[0], code)


def _require_object(data: Any) -> None:
    if not isinstance(data, dict):
        raise invalid("The body must be a JSON object.", None)


def validate(model: type[BodyT], data: Any) -> BodyT:
    """``data`` as ``model``, or a 400."""
    _require_object(data)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _all_wrong(_complaints(error)) from error


def parse(model: BodyKind, data: Any) -> Parsed:
    """Check the body of a route for text."""
    _require_object(data)
    try:
        body = model.model_validate(data)
    except ValidationError as error:
        keys = Keys(MAX_LOOKED_AT)
        keys.look(model, data)
        raise _all_wrong(_complaints(error), keys.refused) from error
    keys = Keys()
    keys.look(model, data)
    if keys.refused:
        raise _all_wrong({}, keys.refused)
    return Parsed(body, tuple(keys.ignored))
