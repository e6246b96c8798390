"""What the engine counts: a ledger that the decode thread writes and a snapshot that others read.

Owns every counter that an answer, a metric and a trace must agree on; does not know metric names.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dvi.decoding.limits import EngineLimits
from dvi.decoding.session import Session
from dvi.decoding.verdict import Commit
from dvi.drift import AcceptanceDrift, LiveAcceptance, Turn
from dvi.metrics import PositionCounts
from dvi.types import AcceptanceCounts


class Phase(StrEnum):
    """Where a step's time goes."""

    PREFILL = "prefill"
    DRAFT = "draft"
    VERIFY = "verify"
    COMMIT = "commit"
    LOG = "log"


class Outcome(StrEnum):
    """How a request ended; ``rejected`` never got into the waiting line."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class EngineStats:
    """One consistent snapshot, taken between two rounds. A request here is one choice.

    Identities at any moment: ``generated_tokens = counts.rounds + counts.accepted``;
    mean accepted length = ``1 + sum(accepted_per_position) / counts.rounds``. Once nothing runs:
    ``generated_tokens - cancelled_tokens`` = tokens of the requests that ended with stop or length.
    """

    requests: Mapping[Outcome, int]
    prompt_tokens: int  # of requests that got a row
    reused_tokens: int  # of those, spared by shared prefixes
    generated_tokens: int
    cancelled_tokens: int  # generated for requests that were then cancelled or failed
    counts: AcceptanceCounts
    proposed_per_position: tuple[int, ...]  # [max_draft_len]
    accepted_per_position: tuple[int, ...]  # [max_draft_len], unconditional
    phase_s: Mapping[Phase, float]
    swaps: Mapping[str, int]  # keys swapped, refused
    adapter_version: int
    draft_len: int  # longest proposal of the newest step with rounds
    acceptance_fast: float  # 0 before the first judged token
    acceptance_slow: float
    kv_used_ratio: float  # tokens of running requests / max_context_len of all rows
    running: int
    queue_depth: int
    steps: int
    step_faults: int  # steps that failed their requests
    drafter_faults: int  # steps that went on without proposals because the drafter failed
    last_step_s: float  # monotonic time of the newest step or idle heartbeat; old means stuck


class Ledger:
    """Counters of one engine. The decode thread writes, any thread reads.

    A reader sees whole steps only: a step is booked under one lock before anything of it is
    delivered, so whoever holds an answer finds it counted.
    """

    def __init__(
        self,
        limits: EngineLimits,
        drift: AcceptanceDrift,
        live: LiveAcceptance,
        clock: Callable[[], float],
    ) -> None:
        self._lock = threading.Lock()
        self._clock = clock
        self._drift = drift
        self._live = live
        self._num_positions = limits.num_rows * limits.max_context_len
        self._turn = Turn.ALONE
        self._lap_s = clock()
        self._last_step_s = self._lap_s
        self._requests = dict.fromkeys(Outcome, 0)
        self._prompt_tokens = 0
        self._reused_tokens = 0
        self._generated_tokens = 0
        self._cancelled_tokens = 0
        self._counts = AcceptanceCounts()
        self._positions = PositionCounts(limits.max_draft_len)
        self._phase_s = dict.fromkeys(Phase, 0.0)
        self._draft_len = 0
        self._num_running = 0
        self._num_held = 0  # tokens of running requests
        self._steps = 0
        self._step_faults = 0
        self._drafter_faults = 0

    def start_step(self) -> None:
        """Begin the step's first lap."""
        self._lap_s = self._clock()

    def take_turn(self, turn: Turn) -> None:
        """Who drafts in this step."""
        self._turn = turn

    def lap(self, phase: Phase, share: float = 1.0) -> None:
        """Book the time since the previous lap: ``share`` on ``phase``, the rest on prefill."""
        now_s = self._clock()
        spent_s = now_s - self._lap_s
        self._lap_s = now_s
        with self._lock:
            self._phase_s[phase] += spent_s * share
            self._phase_s[Phase.PREFILL] += spent_s * (1.0 - share)

    def book_step(self, commits: Sequence[Commit], sessions: Sequence[Session]) -> None:
        """Count one step's rounds and the requests that ended in it; also the sign of life.

        ``sessions`` are all that were on a row, ended ones included.
        """
        lengths = [len(one.tokens) for one in sessions if one.finish_reason is None]
        with self._lock:
            self._last_step_s = self._clock()
            self._steps += bool(commits)
            self._num_running = len(lengths)
            self._num_held = sum(lengths)
            for commit in commits:
                self._book_round(commit)
        self._book_first_positions(commits, sessions)

    def book_draft_len(self, draft_len: int) -> None:
        """Longest proposal of a step with rounds."""
        self._draft_len = draft_len

    def book_admission(self, prompt_len: int) -> None:
        """A request got its row."""
        with self._lock:
            self._prompt_tokens += prompt_len

    def book_reuse(self, num_tokens: int) -> None:
        """So many more prompt tokens of running requests need no pass."""
        with self._lock:
            self._reused_tokens += num_tokens

    def book_end(self, outcome: Outcome, num_tokens: int = 0) -> None:
        """A request ended outside a round, after ``num_tokens`` booked tokens."""
        with self._lock:
            self._requests[outcome] += 1
            self._cancelled_tokens += num_tokens

    def book_fault(self, *, of_drafter: bool) -> None:
        """A step lost its requests, or only its proposals."""
        with self._lock:
            self._drafter_faults += of_drafter
            self._step_faults += not of_drafter
        if of_drafter:
            self._live.trial.draft_failed(self._turn)

    def read(self, queue_depth: int, swaps: Mapping[str, int], adapter_version: int) -> EngineStats:
        """A snapshot; what others own is passed in."""
        with self._lock:
            drift = self._drift.gauges()
            return EngineStats(
                requests=dict(self._requests),
                prompt_tokens=self._prompt_tokens,
                reused_tokens=self._reused_tokens,
                generated_tokens=self._generated_tokens,
                cancelled_tokens=self._cancelled_tokens,
                counts=copy.deepcopy(self._counts),
                proposed_per_position=tuple(self._positions.proposed),
                accepted_per_position=tuple(self._positions.accepted),
                phase_s=dict(self._phase_s),
                swaps=swaps,
                adapter_version=adapter_version,
                draft_len=self._draft_len,
                acceptance_fast=drift["alpha_fast"],
                acceptance_slow=drift["alpha_slow"],
                kv_used_ratio=self._num_held / self._num_positions,
                running=self._num_running,
                queue_depth=queue_depth,
                steps=self._steps,
                step_faults=self._step_faults,
                drafter_faults=self._drafter_faults,
                last_step_s=self._last_step_s,
            )

    def _book_first_positions(self, commits: Sequence[Commit], sessions: Sequence[Session]) -> None:
        domains = {
            (one.request.request_id, one.request.sampling.choice_index): one.request.domain
            for one in sessions
        }
        self._live.keep_only(domains.keys())
        for commit in commits:
            key = (commit.delta.request_id, commit.delta.choice_index)
            self._live.round_done(key, domains[key], commit.round, self._turn)
            if commit.delta.finish_reason is not None:
                self._live.request_done(key, domains[key])

    def _book_round(self, commit: Commit) -> None:
        round_ = commit.round
        num_judged = len(round_.proposed_ids)
        self._generated_tokens += len(commit.delta.token_ids)
        self._counts.add_round(round_.source, commit.num_proposed, num_judged, round_.num_accepted)
        self._drift.update(num_judged, round_.num_accepted)
        self._positions.add_round(commit.num_proposed, round_.num_accepted)
        reason = commit.delta.finish_reason
        if reason is not None:
            self._requests[Outcome(reason)] += 1
