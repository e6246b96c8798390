"""The door between request threads and the decode thread.

Owns the waiting line and the cancellations that were not seen yet; does not know rows or sessions.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dvi.types import DecodeRequest, Delta

Deliver = Callable[[Delta], None]


class QueueFull(Exception):
    """As many choices wait as may, of all or of one tenant, or the engine stops; none was taken."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One choice with the way back to whoever asked; ``deliver`` runs on the decode thread."""

    request: DecodeRequest
    deliver: Deliver
    arrived_s: float  # monotonic
    family: int  # equal for choices that were submitted together, and for no others


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What was cancelled since the decode thread last looked."""

    request_ids: frozenset[str]  # may name requests that run, or none
    withdrawn: list[Ticket]  # those that were still waiting; they are out of the line


class Inbox:
    """First in, first out for each tenant, tenants in turn. Any thread may call any method.

    A tenant may hold as many places as it leaves free (dynamic thresholds, Choudhury and Hahne
    1998): one alone gets half of them, n get 1 / (n + 1) each, and whoever comes next finds room.
    Requests of the tenant "" are bounded by ``max_queue`` alone.
    """

    def __init__(self, max_queue: int, num_rows: int) -> None:
        self._max_queue = max_queue
        self._num_free = num_rows
        self._waiting: deque[Ticket] = deque()
        self._num_taken = 0
        self._taken_at: dict[str, int] = {}  # by tenant: the count when it had its last turn
        self._cancelled: set[str] = set()
        self._closed = False
        self._changed = threading.Condition()

    def put(self, tickets: Sequence[Ticket]) -> None:
        """All or none, all of one tenant; raises QueueFull when more would wait than may.

        Requests that a free row will take in the next step do not count as waiting.
        """
        with self._changed:
            if self._closed:
                raise QueueFull("the server is stopping")
            self._require_room(tickets[0].request.tenant, len(tickets))
            self._waiting.extend(tickets)
            self._changed.notify()

    def _require_room(self, tenant: str, num_new: int) -> None:
        num_places = self._max_queue + self._num_free
        num_left = num_places - len(self._waiting) - num_new
        if num_left < 0:
            raise QueueFull(f"{self._max_queue} requests are waiting already")
        if not tenant:
            return
        num_own = num_new + sum(ticket.request.tenant == tenant for ticket in self._waiting)
        if num_own > max(1, num_left):
            raise QueueFull(f"this key has its share of the {num_places} places already")

    def cancel(self, request_id: str) -> None:
        """Remember to end every choice of this request at the next step."""
        with self._changed:
            self._cancelled.add(request_id)
            self._changed.notify()

    def take_cancelled(self) -> Cancelled:
        """Everything cancelled since the last call."""
        with self._changed:
            request_ids = frozenset(self._cancelled)
            self._cancelled.clear()
            withdrawn: list[Ticket] = []
            if request_ids:
                withdrawn = [t for t in self._waiting if t.request.request_id in request_ids]
                self._waiting = deque(
                    t for t in self._waiting if t.request.request_id not in request_ids
                )
            return Cancelled(request_ids, withdrawn)

    def take_overdue(self, clock: Callable[[], float]) -> list[Ticket]:
        """Those who waited past their own deadline; ``clock`` is read only if anyone has one."""
        with self._changed:
            if all(t.request.deadline_s is None for t in self._waiting):
                return []
            now_s = clock()
            overdue = [t for t in self._waiting if is_overdue(t.request, now_s)]
            if overdue:
                self._waiting = deque(t for t in self._waiting if not is_overdue(t.request, now_s))
            return overdue

    def take_waiting(self, num_free: int) -> list[Ticket]:
        """Those who get the ``num_free`` rows that are free now.

        The tenant whose last turn is longest ago comes first, and of a tenant who came first.
        """
        with self._changed:
            num_joined = min(num_free, len(self._waiting))
            self._num_free = num_free - num_joined
            return [self._take_next() for _ in range(num_joined)]

    def _take_next(self) -> Ticket:
        # min keeps the first of equals: order of arrival among tenants who had no turn yet.
        place, ticket = min(
            enumerate(self._waiting), key=lambda item: self._taken_at.get(item[1].request.tenant, 0)
        )
        del self._waiting[place]
        self._num_taken += 1
        self._taken_at[ticket.request.tenant] = self._num_taken
        return ticket

    def close(self) -> list[Ticket]:
        """Let nobody in any more; returns everyone who was waiting."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            return waiting

    def wait(self, timeout_s: float) -> bool:
        """Sleep until something is new or the time is over; True if there is something."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._waiting or self._cancelled), timeout_s)

    def depth(self) -> int:
        """Choices that wait for a row."""
        with self._changed:
            return len(self._waiting)


def is_overdue(request: DecodeRequest, now_s: float) -> bool:
    """Whether the request's time is up."""
    return request.deadline_s is not None and now_s >= request.deadline_s
