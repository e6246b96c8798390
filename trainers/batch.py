"""Traces to tensors: the ragged segments of the shallow pass and the rows of the loss.

Owns padding and concatenation; the alignment itself is in window.py. Knows no weights.
Letters: B traces, T padded length, P trained positions of all traces, M kept target ids,
J judged neural proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dvi.modeling.plan import Segment
from dvi.objectives import Judged, Teacher
from dvi.types import Trace
from trainers.window import Window, cut_window, neural_proposals


@dataclass(frozen=True, slots=True)
class Batch:
    """Some traces, ready for one forward of the draft; trace b uses cache row b."""

    traces: tuple[Trace, ...]
    windows: tuple[Window, ...]
    segments: tuple[Segment, ...]
    lengths: Tensor  # [B] int64
    positions: Tensor  # [B, T] int64, counted from each window's start
    select: Tensor  # [P, 2] int64, (trace, index), traces ascending
    teacher: Teacher
    judged: Judged

    @property
    def num_positions(self) -> int:
        """P."""
        return len(self.select)


def make_batch(
    traces: Sequence[Trace], max_seq_len: int, version: int, device: torch.device
) -> Batch:
    """The batch of some traces; the lag of their proposals counts from ``version``."""
    windows = tuple(cut_window(trace, max_seq_len) for trace in traces)
    lengths = torch.tensor([len(window.ids) for window in windows])
    longest = int(lengths.max())
    select = [
        (b, index)
        for b, window in enumerate(windows)
        for index in range(window.first_index, len(window.ids))
    ]
    return Batch(
        traces=tuple(traces),
        windows=windows,
        segments=tuple(Segment(b, 0, window.ids) for b, window in enumerate(windows)),
        lengths=lengths.to(device),
        positions=torch.arange(longest, device=device).repeat(len(windows), 1),
        select=torch.tensor(select, device=device),
        teacher=_teacher(traces, windows, device),
        judged=_judged(traces, windows, version, device),
    )


def split_traces(
    traces: Sequence[Trace], max_seq_len: int, *, max_traces: int, max_positions: int
) -> list[list[Trace]]:
    """Consecutive groups of at most so many traces and trained positions; one trace always fits."""
    groups: list[list[Trace]] = []
    room = 0
    for trace in traces:
        needed = cut_window(trace, max_seq_len).num_trained
        if not groups or needed > room or len(groups[-1]) == max_traces:
            groups.append([])
            room = max_positions
        groups[-1].append(trace)
        room -= needed
    return groups


def is_usable(trace: Trace, num_token_ids: int) -> bool:
    """Whether a stored row can be trained on: something to predict, of this vocabulary, finite.

    One bad row would make every batch that draws it non-finite, for ever. A logit may be -inf: an
    id that does not exist. (The store itself checks that all arrays fit the tokens.)
    """
    if not trace.prompt_ids or not trace.output_ids or not trace.top_ids.size:
        return False
    ids = np.concatenate([trace.prompt_ids, trace.output_ids, trace.top_ids.ravel()])
    return bool(
        ids.min() >= 0
        and ids.max() < num_token_ids
        and (trace.top_logits < np.inf).all()
        and np.isfinite(trace.logsumexp).all()
    )


def _teacher(traces: Sequence[Trace], windows: Sequence[Window], device: torch.device) -> Teacher:
    """Rows of all traces, cut to the smallest M: a smaller top set only moves mass to the tail."""
    kept = min(trace.top_ids.shape[1] for trace in traces)
    pairs = [(trace, window.first_row) for trace, window in zip(traces, windows, strict=True)]
    top_ids = np.concatenate([trace.top_ids[row:, :kept] for trace, row in pairs])
    top_logits = np.concatenate([trace.top_logits[row:, :kept] for trace, row in pairs])
    logsumexp = np.concatenate([trace.logsumexp[row:] for trace, row in pairs])
    committed = [token for trace, row in pairs for token in trace.output_ids[row:]]
    greedy = [
        trace.sampling.temperature == 0 for trace, row in pairs for _ in trace.output_ids[row:]
    ]
    return Teacher(
        top_ids=torch.from_numpy(top_ids.astype(np.int64)).to(device),
        top_logits=torch.from_numpy(top_logits).to(device),
        logsumexp=torch.from_numpy(logsumexp).to(device),
        committed=torch.tensor(committed, device=device),
        greedy=torch.tensor(greedy, device=device),
    )


def _judged(
    traces: Sequence[Trace], windows: Sequence[Window], version: int, device: torch.device
) -> Judged:
    """The neural proposals inside the windows; a version newer than ours has lag 0."""
    index: list[int] = []
    token: list[int] = []
    reward: list[float] = []
    lag: list[int] = []
    offset = 0
    for trace, window in zip(traces, windows, strict=True):
        for proposal in neural_proposals(trace):
            if proposal.row < window.first_row:
                continue
            index.append(offset + proposal.row - window.first_row)
            token.append(proposal.token)
            reward.append(float(proposal.is_accepted))
            lag.append(max(0, version - proposal.adapter_version))
        offset += window.num_trained
    return Judged(
        index=torch.tensor(index, dtype=torch.int64, device=device),
        token=torch.tensor(token, dtype=torch.int64, device=device),
        reward=torch.tensor(reward, dtype=torch.float32, device=device),
        lag=torch.tensor(lag, dtype=torch.int64, device=device),
    )
