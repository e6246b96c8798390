"""What an answer is made of, text and calls, and how one complete call reads.

Owns the values; does not know where in an answer they stand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is no call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A part of call ``index``; the first one has its name. Joined arguments are the model's."""

    index: int
    arguments: str
    name: str | None = None


Piece = TextPiece | CallPiece


def _as_object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def whole_call(text: str, is_marked: bool) -> tuple[str, str] | None:
    """Name and arguments of a complete object, None where it is no call.

    Only a mark makes a call of a name alone: without one it may be an answer in JSON.
    """
    call = _as_object(text) or {}
    default: dict[str, Any] | None = {} if is_marked else None
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", default))
    if isinstance(arguments, str):  # some models write JSON in JSON
        arguments = _as_object(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    written = json.dumps(arguments, ensure_ascii=False)
    # A lone surrogate, which no answer can carry, becomes the escape that the model wrote.
    return name, written.encode(errors="backslashreplace").decode()
