"""``python -m dvi.bench.http.client``: streaming requests from a process of its own.

Reads ``{"url", "headers", "streams": [{"delay_s", "calls": [{"path", "body"}]}]}`` on stdin, sends
the calls of each stream one after the other, all streams at once, and writes what came when on
stdout. Bodies are made before the first request and chunks parsed after the last answer: neither
takes time from the server that is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from dvi.bench.http.wire import Exchange, Peer

Json = dict[str, Any]

DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as it arrived."""

    stream: int
    sent_s: float  # time.monotonic()
    exchange: Exchange


async def _stream(place: int, delay_s: float, exchanges: Sequence[Exchange]) -> list[Reply]:
    await asyncio.sleep(delay_s)
    replies = []
    for exchange in exchanges:
        replies.append(Reply(place, time.monotonic(), exchange))
        await exchange.run()
    return replies


def _exchanges(plan: Json, calls: Iterable[Json]) -> list[Exchange]:
    to = Peer(plan["url"], plan.get("headers", {}))
    return [Exchange(to, "POST", call["path"], json.dumps(call["body"]).encode()) for call in calls]


async def run(plan: Json) -> list[Reply]:
    """Every reply, stream by stream."""
    streams = [(one["delay_s"], _exchanges(plan, one["calls"])) for one in plan["streams"]]
    tasks = [_stream(place, *stream) for place, stream in enumerate(streams)]
    return [reply for replies in await asyncio.gather(*tasks) for reply in replies]


def _events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, at the time its last byte came."""
    left = b""
    for at_s, piece in pieces:
        *whole, left = (left + piece).split(b"\n\n")
        for event in whole:
            yield at_s, event.removeprefix(b"data: ")


def summary(reply: Reply) -> Json:
    """Times and tokens of the chunks that brought any; an answer without end is an error."""
    pieces = reply.exchange.read()
    error, status = reply.exchange.error, reply.exchange.status
    if error is None and status != HTTPStatus.OK:
        error = f"HTTP {status}"
    times, tokens, is_done = [], [], False
    for at_s, data in _events(pieces) if error is None else ():
        if data == DONE:
            is_done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            error = str(chunk["error"].get("code") or "error event")
        for choice in chunk.get("choices", ()):
            ids = choice.get("token_ids") or ()
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if ids or text:
                times.append(at_s)
                tokens.append(len(ids) or 1)  # a server that sends no ids sends a token a chunk
    if error is None and not is_done:
        error = "stream ended early"
    return {
        "stream": reply.stream,
        "sent_s": reply.sent_s,
        "error": error,
        "times_s": times,
        "tokens": tokens,
    }


def main() -> None:
    """Plan in, replies out."""
    replies = asyncio.run(run(json.load(sys.stdin)))
    json.dump({"replies": [summary(reply) for reply in replies]}, sys.stdout)


if __name__ == "__main__":
    main()
