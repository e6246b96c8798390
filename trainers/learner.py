"""One optimizer step, and the score of a draft on traces it has not seen.

Owns the training copy of the draft, the optimizer and the schedule step. Does not know where rows
come from or what becomes of a version.
Letters: P trained positions, R rows of the head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from dvi.config import ObjectiveConfig, TrainerConfig
from dvi.objectives import LossReport, next_baseline, total_loss
from dvi.types import Trace
from trainers.batch import Batch, make_batch, split_traces
from trainers.draft import Draft
from trainers.optimizer import DraftOptimizer
from trainers.ranks import ONE, Ranks
from trainers.reports import StepReport, mean_report
from trainers.scoring import Score, ScoredLogits, add_scores, score_batch
from trainers.shallow import DraftInputs
from trainers.subset import step_columns

MAX_LOGITS = 1 << 26  # entries of one logits tensor, 256 MB in float32; its gradient is another


class Learner:
    """Trains one draft. One thread calls; the target is only read.

    Invariant: a step either changes every trainable value and counts once, or (loss or gradient
    not finite) changes nothing and counts as dropped.
    """

    def __init__(
        self,
        draft: Draft,
        inputs: DraftInputs,
        objective: ObjectiveConfig,
        config: TrainerConfig,
        ranks: Ranks = ONE,
    ) -> None:
        self.ranks = ranks
        self.draft = draft
        self.inputs = inputs
        self.objective = objective
        self.config = config
        self.optimizer = DraftOptimizer(draft.module, config)
        self.max_positions = max(1, MAX_LOGITS // inputs.target.spec.num_token_ids)
        self.num_steps = 0
        self.num_dropped = 0
        self.baseline = 0.0  # moving average of rewards

    def train_step(self, traces: Sequence[Trace], version: int) -> StepReport:
        """One step on some traces; the lag of their proposals counts from ``version``."""
        self.optimizer.clear()
        report = self._accumulate(traces, version)
        norm = self.optimizer.step(self.num_steps) if math.isfinite(report.loss) else None
        self.optimizer.clear()
        if norm is None:
            self.num_dropped += 1
            return StepReport(self.num_steps, True, math.nan, report)
        self.num_steps += 1
        if report.num_judged:
            self.baseline = next_baseline(self.baseline, report.reward, self.objective)
        return StepReport(self.num_steps, False, norm, report)

    @torch.no_grad()
    def score(self, traces: Sequence[Trace], version: int) -> Score:
        """The score of the draft's present values, which ``version`` is or will be."""
        scores = []
        num_ids = self.inputs.target.spec.num_token_ids
        for batch in self._batches(traces, version, self.inputs.num_rows):
            vocab = self.draft.vocab
            rows = None if vocab is None else vocab.ids.to(self.inputs.target.device)
            logits = self.draft.logits(self.inputs.compute(batch), batch, rows)
            scores.append(score_batch(ScoredLogits(logits, rows, num_ids), batch, version))
        return add_scores(scores)

    def _accumulate(self, traces: Sequence[Trace], version: int) -> LossReport:
        """Gradients of the mean loss over the batch: one padded forward where memory allows it.

        A part weighs as much as its share of the positions, on whichever process it is.
        """
        size = self.config.batch_size
        shares = [self._batches(share, version, size) for share in self.ranks.shares(traces)]
        batches = [batch for share in shares for batch in share]
        total = sum(batch.num_positions for batch in batches)
        vocab = self.draft.vocab
        columns = None if vocab is None else step_columns(batches, vocab)
        reports = []
        for batch in shares[self.ranks.rank]:
            rows = None if columns is None else columns.ids
            hidden = self.inputs.compute(batch)
            with self.ranks.autocast():
                logits = self.draft.logits(hidden, batch, rows)  # [P, R]
            report = total_loss(
                logits,
                batch.teacher if columns is None else columns.teacher(batch),
                batch.judged if columns is None else columns.judged(batch),
                self.objective,
                step=self.num_steps,
                baseline=self.baseline,
            )
            (report.loss * (batch.num_positions / total)).backward()  # type: ignore[no-untyped-call]
            reports.append(replace(report, loss=report.loss.detach()))
        self.ranks.sum_gradients(self.optimizer.params.values())
        return mean_report(self.ranks.gather(reports))

    def _batches(self, traces: Sequence[Trace], version: int, max_traces: int) -> list[Batch]:
        """The traces in as few batches as their size and memory allow."""
        max_seq_len = self.config.max_seq_len
        groups = split_traces(
            traces,
            max_seq_len,
            max_traces=max_traces,
            max_positions=self.max_positions,
        )
        device = self.inputs.target.device
        return [make_batch(group, max_seq_len, version, device) for group in groups]
