"""Tools and calls as they stand in a request body, checked down to the parameters' JSON schema.

Owns what a tool may be; knows neither the model's template nor how calls are written in text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import jsonschema_rs
from pydantic import AfterValidator, Field

from serving.body import Body

MAX_TOOLS = 128  # OpenAI's limit
MAX_DEPTH = 100  # of a schema: every reader of it recurses
MAX_REASON_LEN = 200  # of a complaint that quotes a client's own schema
# Others would be fetched from the network; a schema that names one is read as the newest draft.
KNOWN_DRAFTS = (
    "http://json-schema.org/draft-04/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and lists nest deeper than ``depth``."""
    level = [value]
    for _ in range(depth):
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [
            child for item in inner for child in (item.values() if isinstance(item, dict) else item)
        ]
    return any(isinstance(item, dict | list) for item in level)


def _check_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` itself; ValueError where it is no JSON schema of an object."""
    if schema and schema.get("type", "object") != "object":
        raise ValueError('type: parameters are an object; allowed: "object"')
    if _is_deeper(schema, MAX_DEPTH):
        raise ValueError(f"schema: nests deeper than {MAX_DEPTH} levels")
    named = schema.get("$schema")
    is_known = isinstance(named, str) and named.removesuffix("#") in KNOWN_DRAFTS
    read = schema if is_known else {key: schema[key] for key in schema if key != "$schema"}
    try:
        jsonschema_rs.meta.validate(read)
    except jsonschema_rs.ValidationError as error:
        where = ".".join(str(part) for part in error.instance_path)
        raise ValueError(f"{where or 'schema'}: {error.message[:MAX_REASON_LEN]}") from error
    return schema


def _check_arguments(text: str) -> str:
    """``text`` itself; ValueError where it is no JSON object. Empty stands for no arguments."""
    try:
        arguments = json.loads(text.strip() or "{}")
        json.dumps(arguments, ensure_ascii=False).encode()  # lone surrogates are no text
    except (ValueError, RecursionError) as error:
        raise ValueError("must be the text of a JSON object") from error
    if not isinstance(arguments, dict):
        raise ValueError("must be the text of a JSON object")
    return text


class Function(Body):
    """OpenAI's ``tools[].function``."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_check_parameters)] | None = None
    strict: bool | None = None

    def schema_of_arguments(self) -> dict[str, Any]:
        """None and an empty one are a function without parameters."""
        return self.parameters or NO_PARAMETERS


class Tool(Body):
    """One entry of ``tools``."""

    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        """As chat templates print it: what describes the function, in the order models know."""
        shown: dict[str, Any] = {"name": self.function.name}
        if self.function.description is not None:
            shown["description"] = self.function.description
        shown["parameters"] = self.function.schema_of_arguments()
        return {"type": "function", "function": shown}


class ChosenFunction(Body):
    """The name in ``tool_choice``."""

    name: str


class ChosenTool(Body):
    """``tool_choice`` that names a function."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Literal["none", "auto", "required"] | ChosenTool


class CalledFunction(Body):
    """The function of an earlier call."""

    name: str
    arguments: Annotated[str, AfterValidator(_check_arguments)]


class ToolCall(Body):
    """A call in an assistant's message, as the client sends it back."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """Arguments as an object: templates print it as JSON themselves."""
        arguments = json.loads(self.function.arguments.strip() or "{}")
        called = {"name": self.function.name, "arguments": arguments}
        call: dict[str, Any] = {"type": "function", "function": called}
        return call if self.id is None else {"id": self.id} | call


def check_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> None:
    """ValueError, beginning with the field to blame, where names clash or are not there."""
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.function.name in names:
            raise ValueError(f"tools[{index}].function.name: {tool.function.name!r} is there twice")
        names.add(tool.function.name)
    if choice == "required" and not tools:
        raise ValueError("tool_choice: required needs tools")
    if isinstance(choice, ChosenTool) and choice.function.name not in names:
        raise ValueError(f"tool_choice: {choice.function.name!r} is not among tools")
