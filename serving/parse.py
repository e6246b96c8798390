"""From the bytes of a POST to a checked body, or a 400 that names the field.

Owns the translation of pydantic's errors; knows nothing of what a field means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from serving.errors import ApiError, invalid
from serving.fields import (
    CHAT_UNHONOURED,
    COMPLETION_UNHONOURED,
    MESSAGE_UNHONOURED,
    STREAM_UNHONOURED,
    ignored_keys,
)
from serving.schema import ChatBody, CompletionBody, GenerationBody

BodyT = TypeVar("BodyT", bound=BaseModel)
MAX_BODY_BYTES = 32 << 20  # a full context of token ids is far below


@dataclass(frozen=True, slots=True)
class Parsed:
    """A generation body and the keys in it that nobody defines."""

    body: CompletionBody | ChatBody
    ignored_fields: tuple[str, ...]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


async def read_json(request: Request) -> Any:
    """The body as JSON. Raises 413 and 400."""
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > MAX_BODY_BYTES:
            raise ApiError(413, f"The body is larger than {MAX_BODY_BYTES} bytes.")
    try:
        data = json.loads(bytes(chunks), parse_constant=_refuse_constant)
        # Lone surrogates are JSON but no text: tokenizers cannot encode them.
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise invalid("The body is not valid JSON.", None) from error
    return data


def _param(location: tuple[int | str, ...]) -> str | None:
    """``messages[0].content`` of ("messages", 0, "content", "list[TextPart]", 0, "type")."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in ("str", "int") or "[" in part or "-" in part:
            break  # the tag of a union's member, not a key
        else:
            path += f".{part}" if path else part
    return path or None


def _as_api_error(error: ValidationError) -> ApiError:
    """The first complaint; of a union all members complain, the deepest is the closest."""
    found = error.errors(include_url=False, include_input=False)
    first = found[0]["loc"][:1]
    worst = max((item for item in found if item["loc"][:1] == first), key=lambda e: len(e["loc"]))
    param = _param(worst["loc"])
    message = worst["msg"].removeprefix("Value error, ")
    if param is None and ": " in message:
        param = message.split(":", 1)[0]
        return invalid(message + ".", param)
    return invalid(f"{param or 'body'}: {message}.", param)


def validate(model: type[BodyT], data: Any) -> BodyT:
    """``data`` as ``model``, or a 400."""
    if not isinstance(data, dict):
        raise invalid("The body must be a JSON object.", None)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _as_api_error(error) from error


def _ignored_of_stream(body: GenerationBody) -> list[str]:
    if body.stream_options is None:
        return []
    return ignored_keys(body.stream_options.model_extra, STREAM_UNHONOURED, "stream_options.")


def _ignored_of_messages(body: ChatBody) -> list[str]:
    ignored = []
    for index, message in enumerate(body.messages):
        where = f"messages[{index}]."
        ignored += ignored_keys(message.model_extra, MESSAGE_UNHONOURED, where)
        if not isinstance(message.content, list):
            continue
        for place, part in enumerate(message.content):
            ignored += ignored_keys(part.model_extra, {}, f"{where}content[{place}].")
    return ignored


def parse_completion(data: Any) -> Parsed:
    """Check the body of /v1/completions."""
    body = validate(CompletionBody, data)
    ignored = ignored_keys(body.model_extra, COMPLETION_UNHONOURED)
    return Parsed(body, tuple(ignored + _ignored_of_stream(body)))


def parse_chat(data: Any) -> Parsed:
    """Check the body of /v1/chat/completions."""
    body = validate(ChatBody, data)
    ignored = ignored_keys(body.model_extra, CHAT_UNHONOURED)
    return Parsed(body, tuple(ignored + _ignored_of_stream(body) + _ignored_of_messages(body)))
