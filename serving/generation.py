"""One HTTP request in the engine: submit its choices, hand over what they deliver, cancel.

Owns the way from the decode thread to the event loop and the request's outcome; knows nothing of
how an answer looks. Use as ``async with`` so that whatever happens the engine frees the rows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import NamedTuple, Self

from dvi.decoding import Outcome, QueueFull
from dvi.types import Delta, FinishReason
from serving.counts import outcome_of
from serving.errors import invalid, queue_full
from serving.plan import Plan, unrecorded
from serving.service import DecodeEngine, Service

ENDED_WELL = (FinishReason.STOP, FinishReason.LENGTH)
FREE_TIMEOUT_S = 10.0  # a round takes well under a second; a stuck engine never answers
TIMED_OUT = "timeout"  # what the engine says of a request past its deadline
ANSWERS_PER_S = 4  # for the guess in Retry-After only


class ChoiceDelta(NamedTuple):
    """A delta and the place of its choice in the answer."""

    choice: int
    delta: Delta


class Generation:
    """The deltas of one plan, in the order in which the engine made them.

    Lives on the event loop; only ``_deliver`` runs on the decode thread. The engine ends every
    submitted choice with one last delta, a cancelled one too, so the loop of ``deltas`` ends.
    """

    def __init__(self, service: Service, engine: DecodeEngine, plan: Plan) -> None:
        self.plan = plan
        self.disconnected = False
        self._service = service
        self._engine = engine
        self._queue: asyncio.Queue[Delta] = asyncio.Queue()
        self._mailbox = service.mailbox()
        self._index_of: dict[tuple[str, int], int] = {}
        self._reasons: dict[int, FinishReason] = {}
        self._num_tokens = [0] * len(plan.requests)
        self._is_booked = False

    async def __aenter__(self) -> Self:
        """Submit every choice or none. Raises the 429, and a 400 where the engine refuses."""
        if not self._service.claim(self.plan.engine_ids()):
            self.plan = unrecorded(self.plan)
            self._service.claim(self.plan.engine_ids())
        try:
            self._engine.submit_all(self.plan.requests, self._deliver)
        except QueueFull as error:
            self._service.release(self.plan.engine_ids())
            wait_s = self._engine.stats().queue_depth / ANSWERS_PER_S
            raise queue_full(str(error), wait_s) from error
        except ValueError as error:
            self._service.release(self.plan.engine_ids())
            raise invalid(str(error), None) from error
        self._index_of = {
            (request.request_id, request.sampling.choice_index): index
            for index, request in enumerate(self.plan.requests)
        }
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Free what still runs and book the outcome."""
        if len(self._reasons) < len(self.plan.requests):
            self._cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(FREE_TIMEOUT_S):
                    await self._drain()
        self._service.release(self.plan.engine_ids())
        self._book()

    def disconnect(self) -> None:
        """The client is gone: free the rows; the loop of ``deltas`` ends within a round."""
        self.disconnected = True
        self._cancel()

    async def deltas(self) -> AsyncIterator[ChoiceDelta]:
        """Everything the choices deliver."""
        while len(self._reasons) < len(self.plan.requests):
            delta = await self._next_delta()
            index = self._index_of[delta.request_id, delta.choice_index]
            if index in self._reasons:
                continue  # the engine came back after its choice was given up
            self._num_tokens[index] += len(delta.token_ids)
            if delta.finish_reason is not None:
                self._reasons[index] = delta.finish_reason
                if len(self._reasons) == len(self.plan.requests):
                    self._service.release(self.plan.engine_ids())
                    self._book()  # before the answer leaves: who has it finds it counted
            yield ChoiceDelta(index, delta)

    async def _next_delta(self) -> Delta:
        """What the engine delivers next; the end of a choice whose engine no longer answers."""
        deadline_s = self.plan.requests[0].deadline_s
        if deadline_s is None:
            return await self._queue.get()
        try:
            async with asyncio.timeout(deadline_s + FREE_TIMEOUT_S - time.monotonic()):
                return await self._queue.get()
        except TimeoutError:
            self._cancel()
            left = next(i for i in range(len(self.plan.requests)) if i not in self._reasons)
            request = self.plan.requests[left]
            choice = request.sampling.choice_index
            end = FinishReason.CANCELLED
            return Delta(request.request_id, choice, (), (), "", end, error=TIMED_OUT)

    async def _drain(self) -> None:
        """Wait for the last delta of every choice: only then its tokens are known."""
        async for _ in self.deltas():
            pass

    def _deliver(self, delta: Delta) -> None:
        """Decode thread: hand one delta to the event loop."""
        self._mailbox.post(self._queue, delta)

    def _cancel(self) -> None:
        for request_id in self.plan.engine_ids():
            self._engine.cancel(request_id)

    def _watch_health(self, outcome: Outcome) -> None:
        if outcome is Outcome.FAILED:
            self._service.health.request_failed()
        elif outcome in (Outcome.STOP, Outcome.LENGTH):
            self._service.health.request_ended_well()

    def _book(self) -> None:
        """Count the outcome, once. Nobody reads the answer of a client that is gone."""
        if self._is_booked:
            return
        self._is_booked = True
        reasons = list(self._reasons.values())
        if self.disconnected or len(reasons) < len(self.plan.requests):
            reasons.append(FinishReason.CANCELLED)
        outcome = outcome_of(reasons)
        if outcome in (Outcome.CANCELLED, Outcome.FAILED):
            self._book_undelivered()
        self._book_unlogged()
        self._service.counts.request_ended(outcome)
        self._watch_health(outcome)

    def _book_undelivered(self) -> None:
        for index, reason in self._reasons.items():
            if reason in ENDED_WELL:
                self._service.counts.tokens_undelivered(self._num_tokens[index])

    def _book_unlogged(self) -> None:
        for index, reason in self._reasons.items():
            if reason not in ENDED_WELL or self.plan.requests[index].log:
                continue
            if self.plan.is_duplicate:
                self._service.counts.trace_duplicate()
            else:
                self._service.counts.trace_opted_out()
