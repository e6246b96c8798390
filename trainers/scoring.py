"""How good a draft is on traces: the share of committed tokens that it would have proposed.

Owns the gate's measure. Teacher-forced and with the request's own choice rule, so that it is the
acceptance rate which the live draft would have had there, sampled requests included. Does not know
which version it scores.
Letters: P trained positions, n of them of one trace, R rows of the head, V ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dvi.sampling.choice import ChoicePoint, choose_draft
from dvi.types import Trace
from trainers.batch import Batch
from trainers.window import Window, neural_proposals


@dataclass(frozen=True, slots=True)
class Score:
    """Counts over some traces; sums of scores are scores of the union."""

    num_positions: int = 0
    num_agreed: int = 0
    num_logged: int = 0  # judged proposals of this version whose log-probability was logged
    gap_sum: float = 0.0  # |recomputed - logged| over these
    is_finite: bool = True
    hits: tuple[tuple[bool, ...], ...] = ()  # a trace, a position: the draft proposes its token

    @property
    def agreement(self) -> float:
        """Share of positions at which the draft proposes the committed token; 0 of nothing."""
        return self.num_agreed / self.num_positions if self.num_positions else 0.0

    @property
    def logprob_gap(self) -> float | None:
        """Mean difference to the live draft's own log-probabilities; None without any."""
        return self.gap_sum / self.num_logged if self.num_logged else None


@dataclass(frozen=True, slots=True)
class ScoredLogits:
    """Draft logits of a batch, of the rows that the live draft computes."""

    values: Tensor  # [P, R]
    rows: Tensor | None  # [R] int64, ids of the columns; None: all ids in order
    num_ids: int  # V

    def of(self, part: Tensor) -> Tensor:
        """[n, R] -> [n, V]: -inf for ids that are never proposed."""
        if self.rows is None:
            return part
        full = part.new_full((len(part), self.num_ids), float("-inf"))
        return full.index_copy_(1, self.rows, part)


def add_scores(scores: Iterable[Score]) -> Score:
    """The score of all traces together."""
    parts = list(scores)
    return Score(
        num_positions=sum(part.num_positions for part in parts),
        num_agreed=sum(part.num_agreed for part in parts),
        num_logged=sum(part.num_logged for part in parts),
        gap_sum=sum(part.gap_sum for part in parts),
        is_finite=all(part.is_finite for part in parts),
        hits=tuple(hits for part in parts for hits in part.hits),
    )


def score_batch(logits: ScoredLogits, batch: Batch, version: int) -> Score:
    """Score draft logits of a batch; ``version`` is whose logged proposals to compare."""
    values = logits.values
    if not bool(torch.isfinite(values).all()):
        misses = tuple((False,) * window.num_trained for window in batch.windows)
        return Score(num_positions=len(values), is_finite=False, hits=misses)
    counts = [window.num_trained for window in batch.windows]
    parts = zip(batch.traces, batch.windows, torch.split(values, counts), strict=True)
    return add_scores(
        _score_trace(logits.of(own), trace, window, version) for trace, window, own in parts
    )


def proposed_ids(logits: Tensor, trace: Trace, window: Window) -> list[int]:
    """What a live draft with logits [n, V] would propose at each trained position of a trace."""
    first = len(trace.prompt_ids) + window.first_row  # absolute index of the first chosen token
    points = [ChoicePoint(trace.sampling, first + i) for i in range(len(logits))]
    return choose_draft(logits, points)


def _score_trace(logits: Tensor, trace: Trace, window: Window, version: int) -> Score:
    """Logits [n, V] of one trace's trained positions."""
    committed = trace.output_ids[window.first_row :]
    proposed = proposed_ids(logits, trace, window)
    gaps = _logprob_gaps(logits, trace, version) if window.is_whole else []
    hits = tuple(a == b for a, b in zip(proposed, committed, strict=True))
    return Score(
        num_positions=len(logits),
        num_agreed=sum(hits),
        num_logged=len(gaps),
        gap_sum=sum(gaps),
        hits=(hits,),
    )


def _logprob_gaps(logits: Tensor, trace: Trace, version: int) -> Sequence[float]:
    """|recomputed - logged| of each judged proposal that ``version`` made."""
    own = [p for p in neural_proposals(trace) if p.adapter_version == version]
    if not own:
        return []
    rows = torch.tensor([proposal.row for proposal in own], device=logits.device)
    tokens = torch.tensor([proposal.token for proposal in own], device=logits.device)
    logged = torch.tensor([proposal.logprob for proposal in own], dtype=torch.float64)
    recomputed = logits[rows].double().log_softmax(-1)[torch.arange(len(own)), tokens]
    gaps = (recomputed.cpu() - logged).abs()
    # -inf: drafted under a list of another length, before the config changed
    known: list[float] = gaps[gaps.isfinite()].tolist()
    return known
