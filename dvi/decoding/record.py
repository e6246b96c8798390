"""Traces: what the target said at every committed position of a logged request.

Owns traces under construction; does not know where they go: the sink must neither block nor raise.
Letters: C committed positions of one step, M kept ids, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dvi.decoding.delivery import ANSWERED
from dvi.decoding.session import Session
from dvi.decoding.stats import Ledger, Phase
from dvi.decoding.verdict import Commit, Verdict
from dvi.sampling.top import top_logits
from dvi.types import Round, Trace

TraceSink = Callable[[Trace], None]


def drop_trace(trace: Trace) -> None:
    """The sink of an engine that nobody learns from."""


@dataclass(slots=True)
class TraceDraft:
    """A trace under construction; lists grow by one element a round."""

    top_ids: list[NDArray[np.int32]] = field(default_factory=list)  # [tokens of a round, M] each
    top_logits: list[NDArray[np.float32]] = field(default_factory=list)
    logsumexp: list[NDArray[np.float32]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)


class TraceRecorder:
    """Keeps one draft a logged session. Decode thread only."""

    def __init__(
        self,
        top_ids: int,
        system_fingerprint: str,
        sink: TraceSink,
        wall_clock: Callable[[], float],
        ledger: Ledger,
    ) -> None:
        self._top_ids = top_ids
        self._system_fingerprint = system_fingerprint
        self._sink = sink
        self._wall_clock = wall_clock
        self._ledger = ledger
        self._drafts: dict[int, TraceDraft] = {}  # by row

    def offer(
        self,
        sessions: Sequence[Session],
        verdicts: Sequence[Verdict],
        commits: Sequence[Commit],
    ) -> list[tuple[Session, Trace]]:
        """Add this step's kept tokens; hand over, and return, the traces of requests that ended.

        A request that is cancelled or fails never comes here again: its draft leaves with its row.
        """
        self._ledger.lap(Phase.COMMIT)
        logged = [
            (session, verdict, commit)
            for session, verdict, commit in zip(sessions, verdicts, commits, strict=True)
            if session.request.log
        ]
        if logged:
            self._add(logged)
        ended = [
            (session, self._finish(session))
            for session, _, _ in logged
            if session.finish_reason in ANSWERED
        ]
        for _, trace in ended:
            self._sink(trace)
        self._ledger.lap(Phase.LOG)
        return ended

    def release(self, row: int) -> None:
        """Forget what an unfinished request of this row left."""
        self._drafts.pop(row, None)

    def _add(self, logged: Sequence[tuple[Session, Verdict, Commit]]) -> None:
        """Keep the target's top M and logsumexp of the kept positions of all sessions at once."""
        kept = [verdict.logits[: len(commit.delta.token_ids)] for _, verdict, commit in logged]
        top = top_logits(kept, self._top_ids)
        first = 0
        for session, _, commit in logged:
            last = first + len(commit.delta.token_ids)
            draft = self._drafts.setdefault(session.row, TraceDraft())
            draft.top_ids.append(top.ids[first:last])
            draft.top_logits.append(top.logits[first:last])
            draft.logsumexp.append(top.logsumexp[first:last])
            draft.rounds.append(commit.round)
            first = last

    def _finish(self, session: Session) -> Trace:
        draft = self._drafts.pop(session.row)
        request = session.request
        assert session.finish_reason is not None
        return Trace(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            output_ids=tuple(session.tokens[len(request.prompt_ids) :]),
            sampling=request.sampling,
            finish_reason=session.finish_reason,
            system_fingerprint=self._system_fingerprint,
            top_ids=np.concatenate(draft.top_ids),
            top_logits=np.concatenate(draft.top_logits),
            logsumexp=np.concatenate(draft.logsumexp),
            rounds=tuple(draft.rounds),
            domain=request.domain,
            user_hash=request.user_hash,
            created_s=self._wall_clock(),
        )
