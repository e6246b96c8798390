"""POST /v1/completions and /v1/chat/completions: body in, answer out.

Owns the order of the steps (door, parse, plan, submit, answer) and the count of refused requests;
knows nothing of the fields.
"""

from __future__ import annotations

import time
from functools import partial

from fastapi import Request, Response

from dvi.decoding import Outcome
from serving.errors import ApiError, unavailable
from serving.generation import Generation
from serving.parse import BodyKind, as_json, parse, read_body
from serving.plan import Caller, Plan, make_plan
from serving.sampling import grammar_refused
from serving.schema import ChatBody, CompletionBody
from serving.service import DecodeEngine, Door, ServedModel, Service
from serving.stream import EventStream, whole_answer
from serving.tools.request import tool_refused

# Errors of requests that the engine had: their outcome is booked already.
AFTER_ENTRY = ("engine_failed", "cancelled", "request_timeout")
CLOSED = {
    Door.STARTING: "The model is still loading.",
    Door.DRAINING: "The server is shutting down.",
    Door.STUCK: "The engine does not answer.",
}


def enter(service: Service) -> tuple[ServedModel, DecodeEngine]:
    """The model and its engine, or the 503 that says why not.

    A failing engine is let try: the next request may be the one that it can answer.
    """
    door = service.door()
    if door in CLOSED:
        raise unavailable(CLOSED[door], door.value)
    assert service.model is not None
    assert service.engine is not None
    return service.model, service.engine


def _refused(
    body: CompletionBody | ChatBody, model: ServedModel, engine: DecodeEngine, error: ValueError
) -> ApiError:
    """The 400 of a grammar that does not compile, naming the field it came from."""
    tools = body.callable_tools() if isinstance(body, ChatBody) else ()
    return tool_refused(tools, model.tools, engine.check_grammar) or grammar_refused(body, error)


def _prepare(
    raw: bytes,
    kind: BodyKind,
    caller: Caller,
    model: ServedModel,
    engine: DecodeEngine,
) -> Plan:
    """From bytes to a plan whose grammar is compiled. CPU-bound: off the event loop."""
    parsed = parse(kind, as_json(raw))
    plan = make_plan(parsed, model, caller)
    try:
        engine.check_grammar(plan.requests[0].sampling.grammar)
    except ValueError as error:
        raise _refused(parsed.body, model, engine, error) from error
    return plan


async def _answer(service: Service, request: Request, kind: BodyKind) -> Response:
    caller = Caller(request.state.request_id, time.monotonic(), request.state.api_key)
    model, engine = enter(service)
    raw = await read_body(request, service.config.max_body_bytes)
    prepare = partial(_prepare, raw, kind, caller, model, engine)
    plan = await service.intake.run(len(raw), prepare)
    service.counts.fields_ignored(len(plan.ignored_fields))
    generation = Generation(service, engine, plan)
    if plan.stream:
        return EventStream(await generation.__aenter__())
    async with generation:
        return await whole_answer(generation, request.receive)


async def generate(service: Service, request: Request, kind: BodyKind) -> Response:
    """Answer one request for text; whatever never reached the engine counts as rejected."""
    try:
        return await _answer(service, request, kind)
    except ApiError as error:
        if error.code not in AFTER_ENTRY:
            service.counts.request_ended(Outcome.REJECTED)
        raise
