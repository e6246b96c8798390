"""How an answer leaves: one JSON body, or server-sent events, and what happens if the client goes.

Owns framing and disconnects; knows nothing of what the objects say.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dvi.types import Delta, FinishReason
from serving.answers import ChoiceAnswer, full_answer
from serving.chunks import ChunkWriter
from serving.errors import ApiError, error_body, out_of_time, unavailable
from serving.generation import TIMED_OUT, Generation

logger = logging.getLogger(__name__)

CLIENT_GONE = 499  # nobody reads it; proxies know the number
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that buffers would spoil the stream
]


def failure_of(delta: Delta) -> ApiError | None:
    """The error that stands for a choice which did not end well, if it did not."""
    if delta.finish_reason is FinishReason.FAILED:
        logger.error("request %s failed: %s", delta.request_id, delta.error)
        return ApiError(500, "The engine failed on this request.", code="engine_failed")
    if delta.finish_reason is FinishReason.CANCELLED and delta.error == TIMED_OUT:
        return out_of_time()
    if delta.finish_reason is FinishReason.CANCELLED:
        return unavailable("The server stopped before the answer was complete.", "cancelled")
    return None


@asynccontextmanager
async def watched(generation: Generation, receive: Receive) -> AsyncIterator[Generation]:
    """The generation, cancelled in the engine as soon as the client disconnects."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.disconnect()

    watcher = asyncio.create_task(watch())
    try:
        yield generation
    finally:
        watcher.cancel()


async def whole_answer(generation: Generation, receive: Receive) -> Response:
    """Wait for every choice, then one JSON body; ApiError where a choice did not end well."""
    plan = generation.plan
    choices = [ChoiceAnswer(index) for index in range(len(plan.requests))]
    async with watched(generation, receive):
        async for index, delta in generation.deltas():
            choices[index].add(delta)
            error = failure_of(delta)
            if error is not None and not generation.disconnected:
                raise error
    if generation.disconnected:
        return Response(status_code=CLIENT_GONE)
    return JSONResponse(full_answer(plan, choices))


def event(data: str) -> bytes:
    """One server-sent event."""
    return f"data: {data}\n\n".encode()


class EventStream(Response):
    """A streamed answer. Takes over the generation, already entered, and leaves it at the end."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = list(HEADERS)
        self._generation = generation

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send chunks as they come; stop sending, but see the engine stop, when the client goes."""
        generation = self._generation

        async def write(data: bytes, more: bool = True) -> None:
            if not generation.disconnected:
                await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            async with watched(generation, receive):
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                async for data in self._events():
                    await write(data)
                await write(event("[DONE]"), more=False)
        finally:
            await generation.__aexit__(None, None, None)

    async def _events(self) -> AsyncIterator[bytes]:
        writer = ChunkWriter(self._generation.plan)
        opening = b"".join(event(json.dumps(chunk)) for chunk in writer.opening())
        if opening:
            yield opening
        async for item in self._generation.deltas():
            error = failure_of(item.delta)
            if error is not None:
                yield event(json.dumps(error_body(error)))
                return
            data = b"".join(event(json.dumps(chunk)) for chunk in writer.chunks(item))
            if data:
                yield data
