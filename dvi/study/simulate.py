"""One arm: recorded answers arrive one by one at the learner that the server uses.

Owns the simulated service: the version in service drafts each answer before the answer is learned
from, and training is done with what a trace pays for before the next one comes. Everything else
(memory, steps, gate, registry) is the trainer's own code. Does not know tables.
Letters: n answer tokens, V ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from dvi.drafting.version import published_acceptance
from dvi.registry import Adapter
from dvi.study.rounds import walk
from dvi.types import Round, Source, Trace
from trainers.batch import make_batch
from trainers.learner import Learner
from trainers.reports import StepReport
from trainers.scoring import ScoredLogits, proposed_ids
from trainers.stream import replay_stream
from trainers.training import Publication, Training

WRITER = "study"
TRAINING_ID = 1


@dataclass(frozen=True, slots=True)
class Guess:
    """What a draft proposes at every position of an answer, had all before it been accepted."""

    ids: Sequence[int]  # [n]
    logprobs: Sequence[float]  # [n], raw, at T = 1
    version: int
    published: float | None  # acceptance that its manifest claims


@dataclass(frozen=True, slots=True)
class Served:
    """One request of the stream as it was served."""

    trace: Trace
    guess: Guess  # of the version in service
    hits: tuple[bool, ...]  # [n], by it
    replaced_hits: tuple[bool, ...] | None  # by the version that it replaced, if it did
    version: int
    num_steps: int  # optimizer steps done before it came
    trained_positions: int  # that these steps were taken on, repeats counted


@dataclass(slots=True)
class Progress:
    """What training did so far."""

    num_steps: int = 0
    num_dropped: int = 0
    trained_positions: int = 0
    gates: list[Publication] = field(default_factory=list)

    def note(self, done: StepReport | Publication | int) -> None:
        """Take one act of the trainer."""
        if isinstance(done, Publication):
            self.gates.append(done)
        elif isinstance(done, StepReport):
            self.num_dropped += done.is_dropped
            self.num_steps += not done.is_dropped
            self.trained_positions += 0 if done.is_dropped else done.loss.num_positions


@dataclass(slots=True)
class Service:
    """The version in service and the one that it replaced."""

    training: Training
    version: int = 0
    adapter: Adapter | None = None
    replaced: tuple[int, Adapter | None] | None = None

    def follow(self) -> None:
        """Look at the registry, as a server does between rounds."""
        if self.training.parts.versions.registry.current() == self.version:
            return
        before = (self.version, self.adapter)
        self.version, self.adapter, fault = self.training.parts.versions.served()
        assert not fault
        self.replaced = before if self.version > before[0] else None

    def guess(self, trace: Trace) -> Guess:
        """By the version in service."""
        return guess(self.training.parts.learner, trace, self.version, self.adapter)

    def replaced_hits(self, trace: Trace) -> tuple[bool, ...] | None:
        """By the version before it; None after a rollback and before any promotion."""
        if self.replaced is None:
            return None
        return hits(guess(self.training.parts.learner, trace, *self.replaced), trace)


def simulate(
    training: Training, stream: Sequence[Trace], draft_len: int, progress: Progress
) -> Iterator[Served]:
    """Serve and learn from ``stream``; a training at its start, whose store is empty.

    The registry's live version serves first, and is trained further.
    """
    training.resume(TRAINING_ID)
    service = Service(training)
    service.follow()
    service.replaced = None  # what was live before the stream has replaced nothing in it
    for trace in stream:
        proposal = service.guess(trace)
        yield Served(
            trace=trace,
            guess=proposal,
            hits=hits(proposal, trace),
            replaced_hits=service.replaced_hits(trace),
            version=service.version,
            num_steps=progress.num_steps,
            trained_positions=progress.trained_positions,
        )
        training.parts.rows.store.append(WRITER, [drafted(trace, proposal, draft_len)])
        for done in replay_stream(training):
            progress.note(done)
        service.follow()


@torch.no_grad()
def guess(learner: Learner, trace: Trace, version: int, adapter: Adapter | None) -> Guess:
    """What a version (None: the untrained draft) proposes at every position of a whole trace."""
    target = learner.inputs.target
    batch = make_batch([trace], learner.config.max_seq_len, version, target.device)
    with learner.draft.showing(adapter):
        vocab = learner.draft.vocab
        rows = None if vocab is None else vocab.ids.to(target.device)
        values = learner.draft.logits(learner.inputs.compute(batch), batch, rows)
        logits = ScoredLogits(values, rows, target.spec.num_token_ids).of(values)  # [n, V]
    ids = proposed_ids(logits, trace, batch.windows[0])
    logprobs = logits.log_softmax(-1).gather(1, torch.tensor(ids, device=logits.device)[:, None])
    return Guess(ids, logprobs[:, 0].tolist(), version, published_acceptance(adapter))


def hits(proposal: Guess, trace: Trace) -> tuple[bool, ...]:
    """Where it is the committed token."""
    return tuple(a == b for a, b in zip(proposal.ids, trace.output_ids, strict=True))


def drafted(trace: Trace, proposal: Guess, draft_len: int) -> Trace:
    """The trace that a server with this draft and this K would have stored."""
    rounds = []
    for cycle in walk(hits(proposal, trace), draft_len, trace.sampling.max_tokens):
        judged = slice(cycle.start, cycle.start + cycle.num_judged)
        rounds.append(
            Round(
                source=Source.NEURAL if cycle.num_judged else Source.TARGET,
                adapter_version=proposal.version,
                proposed_ids=tuple(proposal.ids[judged]),
                draft_logprobs=tuple(proposal.logprobs[judged]),
                num_accepted=cycle.num_accepted,
            )
        )
    return replace(trace, rounds=tuple(rounds))
