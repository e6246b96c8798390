"""``python -m dvi.bench.http.client``: streaming requests from a process of its own.

Reads ``{"url", "streams": [{"delay_s", "calls": [{"path", "body"}]}]}`` on stdin, sends the calls
of each stream one after the other, all streams at once, and writes what came when on stdout. Chunks
are parsed after the last answer, so that parsing takes no time from the server that is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]

TIMEOUT_S = 300.0
DONE = b"[DONE]"


@dataclass(slots=True)
class Reply:
    """One answer as it arrived; times are seconds since the pass began."""

    stream: int
    sent_s: float
    error: str | None = None
    parts: list[tuple[float, bytes]] = field(default_factory=list)


async def _call(client: httpx.AsyncClient, call: Json, reply: Reply, start_s: float) -> None:
    try:
        async with client.stream("POST", call["path"], json=call["body"]) as answer:
            async for part in answer.aiter_raw():
                reply.parts.append((time.monotonic() - start_s, part))
            if answer.status_code != httpx.codes.OK:
                reply.error = f"HTTP {answer.status_code}"
    except httpx.HTTPError as error:
        reply.error = type(error).__name__


async def _stream(client: httpx.AsyncClient, place: int, plan: Json, start_s: float) -> list[Reply]:
    await asyncio.sleep(plan["delay_s"])
    replies = []
    for call in plan["calls"]:
        reply = Reply(place, time.monotonic() - start_s)
        await _call(client, call, reply, start_s)
        replies.append(reply)
    return replies


async def run(plan: Json) -> list[Reply]:
    """Every reply, stream by stream."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=plan["url"], timeout=TIMEOUT_S, limits=limits, headers=plan.get("headers")
    ) as client:
        start_s = time.monotonic()
        tasks = [_stream(client, i, one, start_s) for i, one in enumerate(plan["streams"])]
        return [reply for replies in await asyncio.gather(*tasks) for reply in replies]


def _events(reply: Reply) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, at the time its last byte came."""
    left = b""
    for at_s, part in reply.parts:
        *whole, left = (left + part).split(b"\n\n")
        for event in whole:
            yield at_s, event.removeprefix(b"data: ")


def summary(reply: Reply) -> Json:
    """Times and tokens of the chunks that brought any; an answer without end is an error."""
    times, tokens, is_done = [], [], False
    for at_s, data in _events(reply) if reply.error is None else ():
        if data == DONE:
            is_done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            reply.error = str(chunk["error"].get("code") or "error event")
        for choice in chunk.get("choices", ()):
            ids = choice.get("token_ids") or ()
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if ids or text:
                times.append(at_s)
                tokens.append(len(ids) or 1)  # a server that sends no ids sends a token a chunk
    if reply.error is None and not is_done:
        reply.error = "stream ended early"
    return {
        "stream": reply.stream,
        "sent_s": reply.sent_s,
        "error": reply.error,
        "times_s": times,
        "tokens": tokens,
    }


def main() -> None:
    """Plan in, replies out."""
    replies = asyncio.run(run(json.load(sys.stdin)))
    json.dump({"replies": [summary(reply) for reply in replies]}, sys.stdout)


if __name__ == "__main__":
    main()
