"""From the bytes of a POST to a checked body, or a 400 that names every field that is wrong.

Owns the translation of pydantic's errors; knows nothing of what a field means.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from serving.errors import ApiError, invalid
from serving.fields import (
    CHAT_UNHONOURED,
    COMPLETION_UNHONOURED,
    MESSAGE_UNHONOURED,
    STREAM_UNHONOURED,
    STRUCTURED_UNHONOURED,
    sort_keys,
)
from serving.schema import (
    MAX_MESSAGES,
    ChatBody,
    CompletionBody,
    Message,
    Prediction,
    StreamOptions,
    TextPart,
)
from serving.structured import JsonSchema, ResponseFormat, StructuredOutputs
from serving.tools.schema import (
    MAX_TOOLS,
    CalledFunction,
    ChosenFunction,
    ChosenTool,
    Function,
    Tool,
    ToolCall,
)

BodyT = TypeVar("BodyT", bound=BaseModel)
READ_TIMEOUT_S = 60.0
MAX_NAMED = 10  # complaints and ignored keys that one answer lists


@dataclass(frozen=True, slots=True)
class Parsed:
    """A generation body and the keys in it that nobody defines."""

    body: CompletionBody | ChatBody
    ignored_fields: tuple[str, ...]


@dataclass(slots=True)
class Keys:
    """Keys that no model here has, sorted into the two classes that matter."""

    refused: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)

    def look(
        self,
        data: object,
        model: type[BaseModel],
        unhonoured: Mapping[str, tuple[Any, ...]],
        where: str = "",
    ) -> None:
        """Sort the keys of ``data``, if it is an object, that ``model`` does not have."""
        if not isinstance(data, dict):
            return
        known = _known_keys(model)
        extra = {key: value for key, value in data.items() if key not in known}
        refused, ignored = sort_keys(extra, unhonoured, where)
        self.refused += refused
        self.ignored += ignored


@cache
def _known_keys(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in model.model_fields.items())


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
        raise invalid("The body is not valid JSON in UTF-8.", None) from error


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


def _look_at_parts(keys: Keys, content: object, where: str) -> None:
    if isinstance(content, list):
        for place, part in enumerate(content):
            keys.look(part, TextPart, {}, f"{where}.content[{place}].")


def _nested_keys(keys: Keys, data: Mapping[str, Any]) -> None:
    """Keys inside the objects of a body."""
    keys.look(data.get("stream_options"), StreamOptions, STREAM_UNHONOURED, "stream_options.")
    asked = data.get("structured_outputs")
    keys.look(asked, StructuredOutputs, STRUCTURED_UNHONOURED, "structured_outputs.")
    asked = data.get("response_format")
    keys.look(asked, ResponseFormat, {"structures": (), "triggers": ()}, "response_format.")
    if isinstance(asked, dict):
        keys.look(asked.get("json_schema"), JsonSchema, {}, "response_format.json_schema.")


def _look_at_functions(
    keys: Keys, items: object, models: tuple[type[BaseModel], type[BaseModel]], where: str
) -> None:
    """Keys of tools or calls and of the ``function`` in each; ``models`` are those of the two."""
    if not isinstance(items, list):
        return
    for place, item in enumerate(items[:MAX_TOOLS]):
        keys.look(item, models[0], {}, f"{where}[{place}].")
        if isinstance(item, dict):
            keys.look(item.get("function"), models[1], {}, f"{where}[{place}].function.")


def _tool_keys(keys: Keys, data: Mapping[str, Any]) -> None:
    _look_at_functions(keys, data.get("tools"), (Tool, Function), "tools")
    choice = data.get("tool_choice")
    keys.look(choice, ChosenTool, {}, "tool_choice.")
    if isinstance(choice, dict):
        keys.look(choice.get("function"), ChosenFunction, {}, "tool_choice.function.")


def _chat_keys(keys: Keys, data: Mapping[str, Any]) -> None:
    messages = data.get("messages")
    if not isinstance(messages, list) or len(messages) > MAX_MESSAGES:
        return  # refused as they are
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        keys.look(message, Message, MESSAGE_UNHONOURED, where + ".")
        if isinstance(message, dict):
            _look_at_parts(keys, message.get("content"), where)
            calls = message.get("tool_calls")
            _look_at_functions(keys, calls, (ToolCall, CalledFunction), f"{where}.tool_calls")
    prediction = data.get("prediction")
    keys.look(prediction, Prediction, {}, "prediction.")
    if isinstance(prediction, dict):
        _look_at_parts(keys, prediction.get("content"), "prediction")


def _checked(model: type[BodyT], data: Any, keys: Keys) -> BodyT:
    try:
        body = model.model_validate(data)
    except ValidationError as error:
        raise _all_wrong(_complaints(error), keys.refused) from error
    if keys.refused:
        raise _all_wrong({}, keys.refused)
    return body


def parse_completion(data: Any) -> Parsed:
    """Check the body of /v1/completions."""
    _require_object(data)
    keys = Keys()
    keys.look(data, CompletionBody, COMPLETION_UNHONOURED)
    _nested_keys(keys, data)
    body = _checked(CompletionBody, data, keys)
    return Parsed(body, tuple(keys.ignored))


def parse_chat(data: Any) -> Parsed:
    """Check the body of /v1/chat/completions."""
    _require_object(data)
    keys = Keys()
    keys.look(data, ChatBody, CHAT_UNHONOURED)
    _nested_keys(keys, data)
    _chat_keys(keys, data)
    _tool_keys(keys, data)
    body = _checked(ChatBody, data, keys)
    return Parsed(body, tuple(keys.ignored))
