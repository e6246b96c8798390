"""POST /v1/completions and /v1/chat/completions: body in, answer out.

Owns the order of the steps (door, parse, plan, submit, answer) and the count of refused requests;
knows nothing of the fields.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from dvi.decoding import Outcome
from serving.errors import ApiError, unavailable
from serving.generation import Generation
from serving.parse import Parsed, read_json
from serving.plan import make_plan
from serving.service import DecodeEngine, Door, ServedModel, Service
from serving.stream import EventStream, whole_answer


def enter(service: Service) -> tuple[ServedModel, DecodeEngine]:
    """The model and its engine, or the 503 that says why not."""
    door = service.door()
    if door is Door.READY or door is Door.STUCK:
        assert service.model is not None
        assert service.engine is not None
        return service.model, service.engine
    text = {
        Door.STARTING: "The model is still loading.",
        Door.DRAINING: "The server is shutting down.",
    }
    raise unavailable(text[door], door.value)


async def _answer(service: Service, request: Request, parse: Callable[[Any], Parsed]) -> Response:
    arrived_s = time.monotonic()
    model, engine = enter(service)
    parsed = parse(await read_json(request))
    plan = await run_in_threadpool(make_plan, parsed, model, request.state.request_id, arrived_s)
    service.counts.fields_ignored(len(plan.ignored_fields))
    generation = Generation(service, engine, plan)
    if plan.stream:
        return EventStream(await generation.__aenter__())
    async with generation:
        return await whole_answer(generation, request.receive)


async def generate(service: Service, request: Request, parse: Callable[[Any], Parsed]) -> Response:
    """Answer one request for text; whatever never reached the engine counts as rejected."""
    try:
        return await _answer(service, request, parse)
    except ApiError as error:
        if error.code not in ("engine_failed", "cancelled"):
            service.counts.request_ended(Outcome.REJECTED)
        raise
