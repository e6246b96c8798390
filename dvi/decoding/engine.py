"""The engine: one decode thread that turns requests into exactly the target's own tokens.

Owns the decode loop and wires its parts; does not know HTTP, the replay store, or how a draft
learns.

Who may call what: ``submit``, ``submit_all``, ``cancel``, ``stats`` and ``AdapterSlot.stage`` from
any thread; ``step``, ``advance`` and ``run`` from the one decode thread, where every ``deliver``
and observer call happens as well.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from dvi.config import DriftConfig
from dvi.decoding.controller import Controller
from dvi.decoding.delivery import Deliveries
from dvi.decoding.faults import FAULTS
from dvi.decoding.grammar import GrammarCompiler
from dvi.decoding.inbox import Deliver, Inbox, QueueFull, Ticket
from dvi.decoding.limits import EngineLimits
from dvi.decoding.observer import EngineObserver, SilentObserver
from dvi.decoding.propose import Proposer
from dvi.decoding.record import TraceRecorder, TraceSink, drop_trace
from dvi.decoding.rows import Rows
from dvi.decoding.rules import make_rules
from dvi.decoding.scheduler import Scheduler, StepReport
from dvi.decoding.session import Session
from dvi.decoding.slot import AdapterSlot
from dvi.decoding.stats import EngineStats, Ledger, Outcome
from dvi.decoding.text import DecoderFactory
from dvi.decoding.verify import Verifier
from dvi.drafting import Drafter
from dvi.drift import AcceptanceDrift, LiveAcceptance
from dvi.modeling.buckets import Buckets
from dvi.modeling.target import TargetModel
from dvi.types import DecodeRequest, Verification

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 0.1  # how often an idle decode thread shows a sign of life and looks at ``stop``


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What an engine is made of. Drafter and buckets fit ``limits.num_rows`` and ``row_len``."""

    target: TargetModel
    drafter: Drafter
    slot: AdapterSlot
    controller: Controller
    limits: EngineLimits
    make_decoder: DecoderFactory
    grammars: GrammarCompiler | None = None  # None: requests with a grammar are refused
    verification: Verification = Verification.COUPLED
    prefix_scope: str | None = None  # decoding.prefix_scope
    buckets: Buckets | None = None  # None: passes are not recorded
    trace_sink: TraceSink = drop_trace
    system_fingerprint: str = ""
    observer: EngineObserver = field(default_factory=SilentObserver)
    drift: AcceptanceDrift = field(default_factory=lambda: AcceptanceDrift(DriftConfig()))
    live: LiveAcceptance = field(default_factory=LiveAcceptance)
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time


class Engine:
    """Continuous batching with lossless speculation.

    Every token is ``choose(target logits, noise(seed, position))``: a function of request and
    target alone, whatever the drafter, its version, the draft length or the batch. Each request
    gets deltas in order, the last one with ``finish_reason``.
    """

    def __init__(self, parts: EngineParts) -> None:
        limits = parts.limits
        cache = parts.target.new_cache(
            parts.target.spec.num_layers, limits.num_rows, limits.row_len
        )
        ledger = Ledger(limits, parts.drift, parts.live, parts.clock)
        self.parts = parts
        self.slot = parts.slot
        self.controller = parts.controller
        self._ledger = ledger
        self._inbox = Inbox(limits.max_queue, limits.num_rows)
        mode = parts.verification
        self.proposer = Proposer(parts.drafter, cache, ledger, mode)
        self.verifier = Verifier(
            parts.target, self.proposer, cache, ledger, mode, plans=parts.buckets
        )
        self.traces = TraceRecorder(
            limits.top_ids, parts.system_fingerprint, parts.trace_sink, parts.wall_clock, ledger
        )
        self._cache = cache
        self._families = itertools.count()
        self._rows = Rows(
            limits.num_rows,
            parts.prefix_scope,
            share=self._share_prefix,
            release=self._release_row,
        )
        deliveries = Deliveries(parts.observer, parts.clock)
        self.scheduler = Scheduler(
            self._inbox,
            limits,
            deliveries,
            ledger,
            rows=self._rows,
            make_session=self._make_session,
            clock=parts.clock,
        )

    def submit(self, request: DecodeRequest, deliver: Deliver) -> None:
        """Put one choice in line; raises QueueFull or ValueError and then took nothing.

        ``deliver`` gets every delta on the decode thread: it must be cheap and must not wait.
        """
        self.submit_all([request], deliver)

    def submit_all(self, requests: Sequence[DecodeRequest], deliver: Deliver) -> None:
        """Put the choices of one request in line together: all of them or none."""
        num_token_ids = self.parts.target.spec.num_token_ids
        for request in requests:
            self.parts.limits.check(request, num_token_ids)
            self.check_grammar(request.sampling.grammar)
        now_s = self.parts.clock()
        family = next(self._families)
        tickets = [
            Ticket(request, deliver, request.arrived_s or now_s, family) for request in requests
        ]
        try:
            self._inbox.put(tickets)
        except QueueFull:
            for _ in requests:
                self._ledger.book_end(Outcome.REJECTED)
            raise

    def check_grammar(self, grammar: str | None) -> None:
        """Compile a request's grammar; raises ValueError with one line where it is refused.

        May take a second for a new grammar, so whoever must not wait calls it in a thread of its
        own before ``submit``, which then finds it compiled.
        """
        if grammar is None:
            return
        if self.parts.grammars is None:
            raise ValueError("grammar: this engine has no tokenizer for grammars")
        self.parts.grammars.validate(grammar)

    def cancel(self, request_id: str) -> None:
        """End every choice of this request within one round; unknown ids do nothing.

        The receiver gets a last delta with CANCELLED. No trace is kept.
        """
        self._inbox.cancel(request_id)

    def step(self) -> StepReport:
        """One round of everyone on a row, with prompt chunks beside; exceptions pass through."""
        with torch.inference_mode():
            self._ledger.start_step()
            start_s = self.parts.clock()
            self.slot.swap_if_staged()
            batch = self.scheduler.next_batch()
            rounds = batch.rounds
            turn = self.slot.take_turn(len(rounds))
            self._ledger.take_turn(turn)
            offers = self.proposer.offers(rounds, self.controller.most_proposals, turn)
            plans = self.controller.plan(rounds, offers)
            proposals = self.proposer.propose(rounds, offers, plans)
            verdicts = self.verifier.verify(batch, proposals)
            commits = [one.commit(verdict) for one, verdict in zip(rounds, verdicts, strict=True)]
            self.controller.learn(rounds, proposals, commits)
            self.proposer.remember(self.traces.offer(rounds, verdicts, commits))
            report = self.scheduler.finish_step(batch, commits)
            if not batch.prefills:
                seconds = self.parts.clock() - start_s
                self.controller.book_time(rounds, plans, proposals, seconds)
            return report

    def advance(self) -> StepReport:
        """A step that cannot stop the engine: a fault fails the requests of its batch."""
        try:
            return self.step()
        except FAULTS as fault:
            logger.exception("decode step failed")
            self._ledger.book_fault(of_drafter=False)
            return self.scheduler.fail_batch(f"decoding failed: {type(fault).__name__}")

    def run(self, stop: threading.Event) -> None:
        """Decode until ``stop`` is set; sleeps while there is nothing to do.

        Who is still running or waiting then ends with FAILED; drain before setting ``stop``.
        """
        while not stop.is_set():
            if not self.advance().worked:
                self._inbox.wait(IDLE_WAIT_S)
        self.scheduler.close("the server is stopping")

    def stats(self) -> EngineStats:
        """A consistent snapshot of all counters and gauges. Any thread."""
        return self._ledger.read(self._inbox.depth(), self.slot.counts(), self.slot.adapter_version)

    def _share_prefix(self, source_row: int, session: Session, end: int) -> None:
        """Target's and draft's keys and values; see ShareRows."""
        self._cache.copy_span(source_row, session.row, session.num_cached, end)
        self.proposer.share(source_row, session, end)

    def _make_session(self, request: DecodeRequest, row: int) -> Session:
        skip = request.sampling.skip_special_tokens
        decoder = self.parts.make_decoder(skip_special_tokens=skip)
        rules = make_rules(request.sampling, request.prompt_ids, self.parts.grammars)
        return Session(request, row, self.parts.limits.max_context_len, decoder, rules)

    def _release_row(self, row: int) -> None:
        self.traces.release(row)
        self.parts.drafter.release(row)
