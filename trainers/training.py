"""One training: learner, rows, versions and checkpoints as one resumable whole.

Owns the verbs of the loop and what a checkpoint holds. A state between two verbs is complete:
``save`` there and ``resume`` elsewhere goes on bit for bit. Does not know when a verb is due to be
called, nor whether anyone watches: each verb returns what it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dvi.config import TrainerConfig
from dvi.registry import ManifestFields
from trainers.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Counters,
    Identity,
    LineageEntry,
    check_identity,
)
from trainers.gate import Decision, GateRule, Verdict
from trainers.head_rows import list_tensors, restore_list
from trainers.intake import Intake
from trainers.judge import Judge, Judgement
from trainers.learner import Learner
from trainers.probe import ProbeSet
from trainers.reports import StepReport, loss_values
from trainers.rows import Rows
from trainers.versions import Versions

MIN_PAYING_TRACES = 1000  # however small the memory
MAX_DROPS_IN_A_ROW = 8  # then the values themselves are bad, not a batch


@dataclass(frozen=True, slots=True)
class TrainingParts:
    """What a training is made of; each part is its own room's."""

    learner: Learner
    intake: Intake
    rows: Rows
    versions: Versions
    checkpoints: CheckpointStore
    identity: Identity
    gate: GateRule


@dataclass(frozen=True, slots=True)
class Publication:
    """What a gate found and which version came of it."""

    found: Judgement
    version: int | None  # None: refused

    @property
    def verdict(self) -> Verdict:
        """What was decided."""
        return self.found.verdict


class Training:
    """The loop's verbs. One thread.

    A trace pays for ``steps_per_trace`` steps; ``debt_steps`` is what is paid for and not done, at
    most the pay of the traces that its memory holds: it must not train for days on what is left.
    """

    def __init__(self, parts: TrainingParts, config: TrainerConfig) -> None:
        self.parts = parts
        self.config = config
        self.debt_steps = 0.0
        self.gated_step = 0
        self.saved_step = 0
        self.num_promoted = 0
        self.num_held = 0
        self.num_refused = 0
        self.drops_in_a_row = 0
        self.last_report: StepReport | None = None
        self.hurried_traces = 0  # new traces that still pay more, since traffic has changed
        self.pay_share = 1.0
        # A gate tells what share of decode rounds the version in service saves over this one.
        self.earlier_version: int | None = None
        self.probe_rate = 0.0  # agreement of the version in service on the probe set
        probe = ProbeSet(parts.rows.store)
        self.judge = Judge(parts.learner, parts.versions, parts.gate, probe)

    def require_turn(self) -> None:
        """Raise LeaseLost where another machine trains now, ReplayStoreError if nobody knows."""
        self.parts.checkpoints.may_write()

    def take_new(self, max_rows: int) -> int:
        """Admit new rows and take their pay; returns how many were read, 0 at the store's end."""
        new = self.parts.rows.take_new(max_rows)
        hurried = min(new.num_admitted, self.hurried_traces)
        self.hurried_traces -= hurried
        paying = new.num_admitted + hurried * (self.config.drift_steps_factor - 1)
        debt = self.debt_steps + paying * self.config.steps_per_trace * self.pay_share
        memory = self.config.newest_rows + self.config.reservoir_rows
        most = max(MIN_PAYING_TRACES, memory) * self.config.steps_per_trace
        self.debt_steps = min(debt, most)
        self.parts.rows.mark_kept()
        return new.num_read

    def hurry(self) -> None:
        """Traffic has changed: the next traces pay more steps, on the newest rows alone."""
        self.hurried_traces = self.config.drift_traces

    def pay(self, share: float) -> None:
        """From now on traces pay for ``share`` of their steps, and what is owed shrinks with it."""
        self.debt_steps *= min(1.0, share / self.pay_share)
        self.pay_share = share

    def has_work(self) -> bool:
        """Whether a step is paid for and there is something to learn from."""
        return self.debt_steps >= 1 and len(self.parts.intake.memory) > 0

    def train_once(self) -> StepReport | None:
        """One step on a batch from the memory, and a checkpoint where one is due.

        None when the store has lost every row of the memory.
        """
        learner, config = self.parts.learner, self.config
        draw_index = learner.num_steps + learner.num_dropped
        num_traces = config.batch_size * config.gradient_accumulation_steps
        newest_share = 1.0 if self.hurried_traces else config.newest_share
        traces = self.parts.rows.draw(num_traces, newest_share, draw_index)
        if not traces:
            return None
        report = learner.train_step(traces, self.parts.versions.newest)
        self.debt_steps -= 1
        self.last_report = report
        self.drops_in_a_row = self.drops_in_a_row + 1 if report.is_dropped else 0
        if self.drops_in_a_row >= MAX_DROPS_IN_A_ROW:
            self._start_from_served()
        if learner.num_steps - self.saved_step >= config.save_steps:
            self.save()
        return report

    def is_gate_due(self) -> bool:
        """Whether enough steps were made and enough traces wait that no step has seen."""
        since = self.parts.learner.num_steps - self.gated_step
        waiting = len(self.parts.intake.holdout)
        return since >= self.config.publish_steps and waiting >= self.config.min_holdout_traces

    def publish(self) -> Publication | None:
        """Score, decide, checkpoint, publish, promote; then the scored traces enter the memory.

        None when the store has lost so many of them that the gate has to wait for more.
        """
        rows = self.parts.rows.load(list(self.parts.intake.holdout))
        if len(rows) < self.config.min_holdout_traces:
            return None
        self.choose_rows()
        found = self.judge.judge(rows, self.earlier_version)
        verdict, self.probe_rate = found.verdict, found.probe_rate
        if verdict.is_served_worthless:
            self.parts.versions.registry.rollback(
                f"gate: version {verdict.served_version} is worse than the untrained draft"
            )
        if verdict.decision is Decision.REFUSED:
            self._start_from_served()
            self._close_gate(verdict.decision)
            return Publication(found, None)
        is_promoted = verdict.decision is Decision.PROMOTED
        version = self.publish_version(verdict.metrics(), is_promoted=is_promoted)
        self._close_gate(verdict.decision)
        return Publication(found, version)

    def choose_rows(self) -> None:
        """Let the list of head rows follow the traffic: what is scored is what is served."""
        self.parts.learner.draft.follow(self.parts.rows.tokens.counts)

    def publish_version(self, metrics: Mapping[str, float], *, is_promoted: bool) -> int:
        """Checkpoint, then publish the present values, then promote if told to."""
        versions = self.parts.versions
        versions.intend(self.parts.learner.num_steps, is_promoted=is_promoted)
        try:
            self.save()
            return versions.publish(self._manifest(metrics))
        finally:
            versions.withdraw()

    def save(self) -> Path:
        """Write a checkpoint of this moment."""
        path = self.parts.checkpoints.save(self._snapshot())
        self.saved_step = self.parts.learner.num_steps
        return path

    def resume(self, new_id: int) -> list[Path]:
        """Go on from the newest whole checkpoint, else from the version in service as ``new_id``.

        Returns damaged checkpoint files that were passed over. Raises CheckpointRefused.
        """
        checkpoint, damaged = self.parts.checkpoints.load()
        versions = self.parts.versions
        if checkpoint is None:
            versions.training_id = new_id
            versions.root_version = self._start_from_served()
            return damaged
        self.restore(checkpoint)
        finished = versions.finish_after_kill()
        if finished is not None:
            self._close_gate(Decision.PROMOTED if finished.is_promoted else Decision.HELD)
        if damaged:
            versions.adopt_unknown()
        return damaged

    def counters(self) -> Counters:
        """Numbers that only grow."""
        learner = self.parts.learner
        return Counters(
            steps=learner.num_steps,
            dropped_steps=learner.num_dropped,
            unusable_rows=self.parts.rows.num_unusable,
            promoted=self.num_promoted,
            held=self.num_held,
            refused=self.num_refused,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the moment of a checkpoint. Raises CheckpointRefused, with nothing changed."""
        check_identity(checkpoint, self.parts.identity)
        learner, counters = self.parts.learner, checkpoint.counters
        learner.optimizer.restore(checkpoint.tensors)
        restore_list(checkpoint.tensors, learner.draft, self.parts.rows.tokens)
        learner.num_steps = self.saved_step = counters.steps
        learner.num_dropped = counters.dropped_steps
        learner.baseline = checkpoint.baseline
        self.parts.rows.num_unusable = counters.unusable_rows
        self.num_promoted = counters.promoted
        self.num_held = counters.held
        self.num_refused = counters.refused
        self.debt_steps = checkpoint.debt_steps
        self.gated_step = checkpoint.gated_step
        self.parts.intake.restore(checkpoint.intake)
        self.parts.versions.training_id = checkpoint.training_id
        self.parts.versions.root_version = checkpoint.root_version
        self.parts.versions.lineage = list(checkpoint.lineage)

    def _manifest(self, metrics: Mapping[str, float]) -> ManifestFields:
        report = self.last_report
        loss = loss_values(report.loss) if report and not report.is_dropped else {}
        intent: LineageEntry = self.parts.versions.lineage[-1]
        return ManifestFields(
            base_fingerprint=self.parts.identity.base_fingerprint,
            drafter=self.parts.learner.draft.layout.drafter,
            parent=intent.parent,
            metrics={
                **metrics,
                **{f"train_{name}": value for name, value in loss.items()},
                "training_id": self.parts.versions.training_id,
            },
            checkpoint_step=intent.step,
            rows_trained=self.parts.intake.num_admitted - len(self.parts.intake.holdout),
        )

    def _close_gate(self, decision: Decision) -> None:
        """Count the decision; what was held out for it may be trained on."""
        self.num_promoted += decision is Decision.PROMOTED
        self.num_held += decision is Decision.HELD
        self.num_refused += decision is Decision.REFUSED
        self.gated_step = self.parts.learner.num_steps
        self.parts.intake.release_holdout()

    def _start_from_served(self) -> int:
        """Take the values of the version in service (moments afresh); returns its number."""
        version, adapter, _ = self.parts.versions.served()
        self.parts.learner.draft.start_from(adapter)
        self.parts.learner.optimizer.forget_moments()
        self.drops_in_a_row = 0
        return version

    def _snapshot(self) -> Checkpoint:
        learner = self.parts.learner
        return Checkpoint(
            identity=self.parts.identity,
            training_id=self.parts.versions.training_id,
            tensors={
                **learner.optimizer.tensors(),
                **list_tensors(learner.draft, self.parts.rows.tokens),
            },
            counters=self.counters(),
            baseline=learner.baseline,
            debt_steps=self.debt_steps,
            gated_step=self.gated_step,
            intake=self.parts.intake.snapshot(),
            root_version=self.parts.versions.root_version,
            lineage=tuple(self.parts.versions.lineage),
        )
