"""Who is in the next pass: rows in order of arrival, prompts in chunks beside rounds.

Owns running sessions; does not know what rows hold, nor how tokens are proposed, verified or
counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dvi.decoding.delivery import Deliveries, Running
from dvi.decoding.faults import FAULTS
from dvi.decoding.inbox import Cancelled, Inbox, Ticket, is_overdue
from dvi.decoding.limits import EngineLimits
from dvi.decoding.rows import Rows
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Outcome, Phase
from dvi.decoding.verdict import Commit
from dvi.types import AcceptanceCounts, DecodeRequest, Delta, FinishReason

logger = logging.getLogger(__name__)

TIMEOUT = "timeout"  # error of a request whose own deadline passed


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [session.num_cached, + num_tokens) of one session."""

    session: Session
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work: sessions that do a round, and prompt chunks that share the pass."""

    rounds: list[Session]
    prefills: list[PrefillChunk]

    @property
    def num_prefill_tokens(self) -> int:
        """Prompt tokens in the pass."""
        return sum(chunk.num_tokens for chunk in self.prefills)

    def sessions(self) -> list[Session]:
        """Everyone in the pass."""
        return [*self.rounds, *(chunk.session for chunk in self.prefills)]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did."""

    num_rounds: int
    num_prefill_tokens: int
    num_committed: int  # tokens
    num_ended: int  # requests

    @property
    def worked(self) -> bool:
        """False when there was nothing to do."""
        return bool(self.num_rounds or self.num_prefill_tokens or self.num_ended)


class Scheduler:
    """Continuous batching: requests join and leave between rounds. Decode thread only."""

    def __init__(
        self,
        inbox: Inbox,
        limits: EngineLimits,
        deliveries: Deliveries,
        ledger: Ledger,
        *,
        rows: Rows,
        make_session: Callable[[DecodeRequest, int], Session],  # request, row
        clock: Callable[[], float],
    ) -> None:
        self._inbox = inbox
        self._limits = limits
        self._deliveries = deliveries
        self._ledger = ledger
        self._rows = rows
        self._make_session = make_session
        self._clock = clock
        self._running: dict[int, Running] = {}  # by row, in order of arrival
        self._batch: Batch | None = None  # None: the step has not got as far as that
        self._num_ended = 0  # requests that this step ended before its pass

    def next_batch(self) -> Batch:
        """Let go, let in, then take everyone on a row: for a round, or a share of the prefill."""
        self._batch = None
        self._end_cancelled(self._inbox.take_cancelled())
        self._end_overdue()
        for ticket in self._inbox.take_waiting(self._rows.num_free):
            self._admit(ticket)
        self._num_ended = self._end_those_that_cannot_go_on()
        sessions = self.sessions()
        reading = self._take_prefixes([one for one in sessions if one.num_prefill])
        # By row: neighbours of equal width share one attention call.
        rounds = sorted((one for one in sessions if not one.num_prefill), key=lambda one: one.row)
        limits = self._limits
        budget = limits.shared_prefill_chunk_len if rounds else limits.prefill_chunk_len
        self._batch = Batch(rounds, share_prefill(reading, budget))
        return self._batch

    def finish_step(self, batch: Batch, commits: Sequence[Commit]) -> StepReport:
        """Count the step, free the rows of ended sessions, then deliver."""
        for chunk in batch.prefills:
            chunk.session.num_cached += chunk.num_tokens
        self._ledger.book_step(commits, self.sessions())
        num_ended = self._num_ended
        for session, commit in zip(batch.rounds, commits, strict=True):
            running = self._running[session.row]
            running.num_booked += len(commit.delta.token_ids)
            if session.finish_reason is not None:
                num_ended += 1
                self._free(session.row)
            self._deliveries.send(running, commit.delta)
        return StepReport(
            num_rounds=len(batch.rounds),
            num_prefill_tokens=batch.num_prefill_tokens,
            num_committed=sum(len(commit.delta.token_ids) for commit in commits),
            num_ended=num_ended,
        )

    def fail_batch(self, error: str) -> StepReport:
        """End everyone in the step's batch: their rows cannot be trusted any more.

        A step that failed before it had one ends everyone on a row: any of them may be the cause,
        and would be again. Who still waits is untouched.
        """
        members = self.sessions() if self._batch is None else self._batch.sessions()
        failed = [self._running[one.row] for one in members if one.row in self._running]
        for running in failed:
            self._drop(running, FinishReason.FAILED, error)
            self._rows.forget(running.session.row)
        return StepReport(0, 0, 0, len(failed))

    def close(self, error: str) -> None:
        """End everyone, running or waiting, with FAILED; later requests are refused."""
        for ticket in self._inbox.close():
            self._refuse(ticket, FinishReason.FAILED, error)
        for running in list(self._running.values()):
            self._drop(running, FinishReason.FAILED, error)

    def sessions(self) -> list[Session]:
        """Sessions on a row, in order of arrival."""
        return [running.session for running in self._running.values()]

    def _end_cancelled(self, cancelled: Cancelled) -> None:
        for ticket in cancelled.withdrawn:
            self._refuse(ticket, FinishReason.CANCELLED, None)
        for running in list(self._running.values()):
            if running.session.request.request_id in cancelled.request_ids:
                self._drop(running, FinishReason.CANCELLED, None)

    def _end_overdue(self) -> None:
        """End requests whose own time is up, waiting or running."""
        for ticket in self._inbox.take_overdue(self._clock):
            self._refuse(ticket, FinishReason.CANCELLED, TIMEOUT)
        timed = [one for one in self._running.values() if one.ticket.request.deadline_s is not None]
        if timed:
            now_s = self._clock()
            for running in timed:
                if is_overdue(running.ticket.request, now_s):
                    self._drop(running, FinishReason.CANCELLED, TIMEOUT)

    def _end_those_that_cannot_go_on(self) -> int:
        """Requests that wanted their prompt read only, and those whose rules broke; how many."""
        num_ended = 0
        for running in list(self._running.values()):
            session = running.session
            if session.error is not None:
                self._drop(running, FinishReason.FAILED, session.error)
            elif session.reads_only and not session.num_prefill:
                self._free(session.row)
                self._ledger.book_end(Outcome.LENGTH)
                self._deliveries.send(running, session.end(FinishReason.LENGTH))
            else:
                continue
            num_ended += 1
        return num_ended

    def _admit(self, ticket: Ticket) -> None:
        try:
            place = self._rows.place(ticket.request, ticket.family)
            session = self._make_session(ticket.request, place.row)
        except FAULTS as fault:  # nobody may be left waiting for a request that left the line
            logger.exception("request not admitted")
            self._refuse(ticket, FinishReason.FAILED, f"not admitted: {type(fault).__name__}")
            return
        self._rows.take(place, session)
        self._running[place.row] = Running(ticket, session)
        self._ledger.book_admission(len(ticket.request.prompt_ids))
        self._book_reuse(session.num_reused)
        self._deliveries.admitted(ticket)

    def _take_prefixes(self, reading: Sequence[Session]) -> list[Session]:
        """Give prompts what others have computed by now; returns those that need a pass now."""
        self._book_reuse(sum(self._rows.reuse(session) for session in reading))
        return [session for session in reading if not self._rows.waits(session)]

    def _book_reuse(self, num_tokens: int) -> None:
        """Copying is reading a prompt, so that is what its time counts as."""
        if num_tokens:
            self._ledger.book_reuse(num_tokens)
            self._ledger.lap(Phase.PREFILL)

    def _drop(self, running: Running, reason: FinishReason, error: str | None) -> None:
        """End a session from outside a round; what it generated was not an answer."""
        self._free(running.session.row)
        self._ledger.book_end(Outcome(reason), running.num_booked)
        self._deliveries.send(running, running.session.end(reason, error))

    def _refuse(self, ticket: Ticket, reason: FinishReason, error: str | None) -> None:
        """End a request that never got a row."""
        self._ledger.book_end(Outcome(reason))
        request = ticket.request
        index = request.sampling.choice_index
        counts = AcceptanceCounts()
        delta = Delta(request.request_id, index, (), (), "", reason, counts, error=error)
        self._deliveries.hand_over(ticket, delta)

    def _free(self, row: int) -> None:
        del self._running[row]
        self._rows.free(row)


def share_prefill(sessions: Sequence[Session], budget: int) -> list[PrefillChunk]:
    """Give out ``budget`` prompt tokens of one pass in order of arrival."""
    chunks = []
    for session in sessions:
        num_tokens = min(session.num_prefill, budget)
        if num_tokens:
            chunks.append(PrefillChunk(session, num_tokens))
            budget -= num_tokens
    return chunks
