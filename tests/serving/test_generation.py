"""What is counted for a request, and when: before the answer leaves, and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dvi.config import ServingConfig
from dvi.decoding import Outcome
from dvi.types import FinishReason
from serving.generation import Generation
from serving.parse import parse
from serving.plan import Caller, Plan, make_plan
from serving.schema import CompletionBody
from serving.service import Service
from tests.serving.fakes import FakeEngine, fake_model


class DeafEngine(FakeEngine):
    """Ends every choice well although it was cancelled: the cancel came too late."""

    def cancel(self, request_id: str) -> None:
        self.gate.set()


def plan_for(request_id: str = "r", **body: Any) -> Plan:
    parsed = parse(CompletionBody, {"prompt": "hi"} | body)
    return make_plan(parsed, fake_model(), Caller(request_id, 0.0))


def run(scene: Callable[[Service, FakeEngine], Any], engine: FakeEngine) -> Service:
    service = Service(ServingConfig())
    service.open(fake_model(), engine)
    asyncio.run(scene(service, engine))
    return service


def booked(service: Service) -> dict[str, int]:
    return {o.value: n for o, n in service.counts.view().outcomes.items() if n}


def test_whoever_has_the_last_delta_finds_the_request_counted_and_gone() -> None:
    async def scene(service: Service, engine: FakeEngine) -> None:
        async with Generation(service, engine, plan_for(n=2)) as generation:
            assert service.in_flight == {"r"}
            ended = 0
            async for item in generation.deltas():
                ended += item.delta.finish_reason is not None
                assert booked(service) == ({"stop": 1} if ended == 2 else {})
                assert bool(service.in_flight) == (ended < 2)

    assert booked(run(scene, FakeEngine())) == {"stop": 1}


def test_an_answer_that_nobody_waits_for_counts_as_cancelled_with_all_its_tokens() -> None:
    async def scene(service: Service, engine: FakeEngine) -> None:
        async with Generation(service, engine, plan_for(n=2)) as generation:
            generation.disconnect()
            async for _ in generation.deltas():
                pass

    engine = DeafEngine()
    engine.gate.clear()
    service = run(scene, engine)
    assert booked(service) == {"cancelled": 1}
    # Two choices of three words of two tokens; the engine itself takes them for delivered.
    assert service.counts.view().undelivered_tokens == 12


def test_leaving_early_cancels_and_waits_until_the_engine_let_go() -> None:
    async def scene(service: Service, engine: FakeEngine) -> None:
        with pytest.raises(RuntimeError, match="handler"):
            async with Generation(service, engine, plan_for()):
                raise RuntimeError("a fault of the handler")
        assert engine.cancelled == {"r"}
        assert not service.in_flight

    engine = FakeEngine()
    engine.gate.clear()
    service = run(scene, engine)
    assert booked(service) == {"cancelled": 1}
    assert service.counts.view().undelivered_tokens == 0


def test_a_failed_choice_makes_the_request_failed_and_cancels_the_others() -> None:
    async def scene(service: Service, engine: FakeEngine) -> None:
        async with Generation(service, engine, plan_for(n=2)) as generation:
            async for item in generation.deltas():
                if item.delta.finish_reason is FinishReason.FAILED:
                    break

    service = run(scene, FakeEngine(words=("x",), finish=FinishReason.FAILED))
    assert service.counts.view().outcomes[Outcome.FAILED] == 1


def test_an_id_in_flight_is_given_out_once_and_again_after_its_end() -> None:
    async def scene(service: Service, engine: FakeEngine) -> None:
        first = Generation(service, engine, plan_for("same"))
        async with first, Generation(service, engine, plan_for("same")) as second:
            assert not first.plan.is_duplicate
            assert second.plan.is_duplicate
            assert second.plan.request_id == "same"
            assert not set(second.plan.engine_ids()) & set(first.plan.engine_ids())
            assert not any(request.log for request in second.plan.requests)
        async with Generation(service, engine, plan_for("same")) as third:
            assert not third.plan.is_duplicate

    run(scene, FakeEngine())
