"""The way back: deltas to whoever asked, and the times a user feels.

Owns the calls of ``deliver`` and the observer's request clocks; does not know rows or the target.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from dvi.decoding.faults import FAULTS
from dvi.decoding.inbox import Ticket
from dvi.decoding.observer import EngineObserver
from dvi.decoding.session import Session
from dvi.types import Delta, FinishReason

logger = logging.getLogger(__name__)

ANSWERED = frozenset({FinishReason.STOP, FinishReason.LENGTH})


@dataclass(slots=True)
class Running:
    """A session on its row, with what its deliveries need."""

    ticket: Ticket
    session: Session
    delivered_s: float | None = None  # monotonic time of the newest delivery with tokens
    num_booked: int = 0  # tokens in the engine's counters


class Deliveries:
    """Sends deltas and measures gaps. Decode thread only."""

    def __init__(self, observer: EngineObserver, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock

    def admitted(self, ticket: Ticket) -> None:
        """The request got its row."""
        self._observer.queue_wait(self._clock() - ticket.arrived_s)

    def send(self, running: Running, delta: Delta) -> None:
        """Deliver a delta of a running session."""
        now_s = self._clock()
        if delta.token_ids:
            self._observe_tokens(running, len(delta.token_ids), now_s)
        if delta.finish_reason in ANSWERED:
            self._observer.request_done(now_s - running.ticket.arrived_s)
            rate = running.session.counts.acceptance_rate()
            if rate is not None:
                self._observer.request_acceptance(rate)
        self.hand_over(running.ticket, delta)

    def hand_over(self, ticket: Ticket, delta: Delta) -> None:
        """Call the receiver; one that fails has only itself to blame."""
        try:
            ticket.deliver(delta)
        except FAULTS:
            logger.exception("a receiver of tokens failed")

    def _observe_tokens(self, running: Running, num_tokens: int, now_s: float) -> None:
        if running.delivered_s is None:
            self._observer.first_token(now_s - running.ticket.arrived_s)
        else:
            self._observer.inter_token((now_s - running.delivered_s) / num_tokens, num_tokens)
        running.delivered_s = now_s
