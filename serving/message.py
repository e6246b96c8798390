"""What one choice of a chat says, as OpenAI writes it: content and tool calls.

Owns the shape of messages and of stream deltas, from the same pieces, so that joined deltas are
the message; knows no chunk and no token.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from typing import Any

from dvi.types import Delta, FinishReason
from serving.plan import Plan
from serving.tools.pieces import CallPiece, Piece, TextPiece

Json = dict[str, Any]
CALL_ID_LEN = 9  # Mistral's templates refuse others; they want letters and digits, too
_ALPHABET = string.ascii_letters + string.digits
TOOL_CALLS = "tool_calls"


def call_id(request_id: str, choice: int, call: int) -> str:
    """An id for a call, its own among all calls of all requests but for chance (62^9)."""
    digest = hashlib.sha256(f"{request_id} {choice} {call}".encode()).digest()
    number = int.from_bytes(digest)
    return "".join(
        _ALPHABET[number // len(_ALPHABET) ** place % len(_ALPHABET)]
        for place in range(CALL_ID_LEN)
    )


class MessageWriter:
    """One choice's message, delta by delta in their order."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._request_id = plan.request_id
        self._index = index
        self._reader = None if plan.reading is None else plan.reading.open()

    def part(self, delta: Delta) -> Json:
        """The ``delta`` object of a stream; empty where nothing became certain."""
        if self._reader is None:
            return {"content": delta.text} if delta.text else {}
        pieces = self._reader.push(delta.text)
        if delta.finish_reason is not None:
            pieces += self._reader.finish()
        return self._written(pieces)

    def finish_reason(self, delta: Delta) -> str:
        """That of the last delta, after its ``part``: an answer cut by a limit says so."""
        assert delta.finish_reason is not None
        if self._reader is None or not self._reader.num_calls:
            return delta.finish_reason.value
        is_stop = delta.finish_reason is FinishReason.STOP
        return TOOL_CALLS if is_stop else delta.finish_reason.value

    def _written(self, pieces: Sequence[Piece]) -> Json:
        content = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
        calls: dict[int, Json] = {}
        for piece in pieces:
            if isinstance(piece, CallPiece):
                self._add(calls, piece)
        part: Json = {"content": content} if content else {}
        return part | ({TOOL_CALLS: list(calls.values())} if calls else {})

    def _add(self, calls: dict[int, Json], piece: CallPiece) -> None:
        """One entry a call and chunk; id and name stand in its first."""
        call = calls.setdefault(piece.index, {"index": piece.index, "function": {"arguments": ""}})
        if piece.name is not None:
            call["id"] = call_id(self._request_id, self._index, piece.index)
            call["type"] = "function"
            call["function"] = {"name": piece.name, "arguments": ""}
        call["function"]["arguments"] += piece.arguments


def join_message(parts: Sequence[Json]) -> Json:
    """The message of an answer that is not streamed."""
    calls: dict[int, Json] = {}
    for part in parts:
        for entry in part.get(TOOL_CALLS, ()):
            if "id" in entry:
                function = entry["function"]
                calls[entry["index"]] = {
                    "id": entry["id"],
                    "type": "function",
                    "function": dict(function),
                }
            else:
                calls[entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
    content = "".join(part.get("content", "") for part in parts)
    message: Json = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["content"] = content or None
        message[TOOL_CALLS] = list(calls.values())
    return message
