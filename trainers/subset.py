"""The columns of a step's logits: the draft's own rows and the ones its teachers name.

Owns the renumbering; the loss does not know that columns are not ids.
Letters: R columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dvi.drafting.vocab import DraftVocab
from dvi.objectives import Judged, Teacher
from trainers.batch import Batch


@dataclass(frozen=True, slots=True)
class Columns:
    """Some ids and where each stands."""

    ids: Tensor  # [R] int64, ascending
    place: Tensor  # [largest id + 1] int64; arbitrary for an id that has no column

    def teacher(self, batch: Batch) -> Teacher:
        """The batch's teacher, its ids replaced by columns."""
        own = batch.teacher
        return replace(own, top_ids=self.place[own.top_ids], committed=self.place[own.committed])

    def judged(self, batch: Batch) -> Judged:
        """The batch's judged proposals, their tokens replaced by columns."""
        return replace(batch.judged, token=self.place[batch.judged.token])


def step_columns(batches: Sequence[Batch], vocab: DraftVocab) -> Columns:
    """The rows of the list and every id that a teacher or a proposal of the step names.

    An id outside the list cannot be proposed yet, but the next list may hold it, and mass that the
    target puts there must not be pushed elsewhere. All parts of a step have the same columns, so
    that the cut does not change its loss.
    """
    named = [vocab.ids.to(batches[0].select.device)]
    for batch in batches:
        teacher = batch.teacher
        named += [teacher.top_ids.flatten(), teacher.committed, batch.judged.token]
    is_named = torch.bincount(torch.cat(named)) > 0
    return Columns(is_named.nonzero()[:, 0], is_named.cumsum(0) - 1)
