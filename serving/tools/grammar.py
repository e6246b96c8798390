"""Which texts are calls of some tools: the grammar behind ``required`` and a named function.

Owns the grammar's text; does not know whether it compiles: the engine says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dvi.decoding.grammar import lark_grammar
from serving.tools.schema import Tool
from serving.tools.syntax import CLOSING, OPENING, ToolForm, ToolSyntax

# json.dumps' own spacing, in which templates print earlier calls and models were taught.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Keywords that can name properties which ``properties`` does not have.
OPEN_KEYWORDS = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties"}
)


def calls_grammar(
    tools: Sequence[Tool],
    syntax: ToolSyntax,
    *,
    many: bool,
    answer: Mapping[str, Any] | None = None,
) -> str:
    """One call of one of ``tools``, with ``many`` several; or JSON by the schema ``answer``.

    Only marks tell several calls apart, so the bare form has one.
    """
    lines = ["start: calls" if answer is None else "start: calls | answer"]
    is_marked = syntax.form is ToolForm.HERMES
    lines.append(r'calls: call ("\n" call)*' if many and is_marked else "calls: call")
    lines.append(f"call: {_marked(syntax)}" if is_marked else "call: body")
    lines.append("body: " + " | ".join(f"body{index}" for index in range(len(tools))))
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.function.name)}, "{syntax.arguments_key}": '
        lines.append(f'body{index}: {json.dumps(head)} arguments{index} "}}"')
        lines.append(f"arguments{index}: %json {json.dumps(_arguments_schema(tool))}")
    if answer is not None:
        lines.append(f"answer: %json {json.dumps(answer)}")
    return lark_grammar("\n".join(lines) + "\n")


def _marked(syntax: ToolSyntax) -> str:
    """A mark that is one token is named as such; else it is text like any other."""
    if syntax.marks_are_tokens:
        return rf'{OPENING} "\n" body "\n" {CLOSING}'
    return f"{json.dumps(OPENING + chr(10))} body {json.dumps(chr(10) + CLOSING)}"


def _arguments_schema(tool: Tool) -> dict[str, Any]:
    """The parameters' own schema, which stays a document of its own, so that its references hold.

    A call has no arguments that the schema does not name, unless the schema says otherwise.
    """
    schema = {"type": "object"} | tool.function.schema_of_arguments()
    if not OPEN_KEYWORDS & schema.keys():
        schema["additionalProperties"] = False
    return schema | {"x-guidance": SPACING}
