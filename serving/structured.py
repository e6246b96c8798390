"""Structured output as a request asks for it, and the grammar that stands for it.

Owns the two ways to ask (OpenAI's ``response_format``, vLLM's ``structured_outputs``); does not
know whether a grammar compiles: the engine says so.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dvi.decoding.grammar import choice_grammar, json_schema_grammar, regex_grammar
from serving.body import Body
from serving.fields import FORMAT_UNHONOURED, STRUCTURED_UNHONOURED

MAX_CHOICES_LISTED = 1000
MAX_PATTERN_LEN = 10_000
ANY_OBJECT: dict[str, Any] = {"type": "object"}


class JsonSchema(Body):
    """OpenAI's ``response_format.json_schema``; ``strict`` is how it works here in any case."""

    name: str | None = None
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    """OpenAI's ``response_format``."""

    unhonoured = FORMAT_UNHONOURED

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def check_schema(self) -> Self:
        """A schema belongs to one type."""
        if self.type == "json_schema" and self.json_schema is None:
            raise ValueError("type json_schema needs json_schema")
        return self

    def schema_of_answer(self) -> dict[str, Any] | None:
        """None where any text will do."""
        if self.type == "text":
            return None
        if self.json_schema is None or self.json_schema.schema_ is None:
            return ANY_OBJECT
        return self.json_schema.schema_

    def grammar(self) -> str | None:
        """The same as a grammar."""
        schema = self.schema_of_answer()
        return None if schema is None else json_schema_grammar(schema)


class StructuredOutputs(Body):
    """vLLM's ``structured_outputs``: one of three."""

    unhonoured = STRUCTURED_UNHONOURED

    json_: Annotated[str | dict[str, Any] | None, Field(alias="json")] = None
    regex: Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_LEN)] | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES_LISTED)] | None = None

    @model_validator(mode="after")
    def check_one(self) -> Self:
        """Two constraints at once have no meaning."""
        given = [item for item in (self.json_, self.regex, self.choice) if item is not None]
        if len(given) > 1:
            raise ValueError("send one of json, regex and choice")
        return self

    def is_asked(self) -> bool:
        """Whether there is a constraint at all."""
        return any(item is not None for item in (self.json_, self.regex, self.choice))

    def grammar(self) -> str | None:
        """None where nothing is asked for. ValueError: ``json`` is a string that is no schema."""
        if self.json_ is not None:
            schema = self.json_
            if isinstance(schema, str):
                schema = json.loads(schema)
            if not isinstance(schema, dict):
                raise ValueError("json is no JSON object; allowed: a JSON schema")
            return json_schema_grammar(schema)
        if self.regex is not None:
            return regex_grammar(self.regex)
        return None if self.choice is None else choice_grammar(self.choice)
