"""Tools that tests offer, texts in which a model calls them, and an answer as a client sees it.

Owns no property.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from serving.tools.pieces import CallPiece, Piece, TextPiece

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, parameters: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """OpenAI's object."""
    function = {"name": name, "description": f"about {name}", **more}
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


WEATHER, CLOCK = tool("weather", CITY), tool("clock")


def written(name: str, **arguments: Any) -> str:
    """A call as Hermes writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def read(pieces: Sequence[Piece]) -> tuple[str, list[tuple[str, str]]]:
    """Content, and name and arguments of every call."""
    content = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            if piece.name is not None:
                assert piece.index == len(calls)
                calls.append((piece.name, ""))
            name, arguments = calls[piece.index]
            calls[piece.index] = (name, arguments + piece.arguments)
    return content, calls
