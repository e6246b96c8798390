"""Proposals under construction: which token a row of draft logits proposes.

Owns the two ways to draw (with the target's own noise, or exactly from the draft's distribution)
and the request's rules; does not know what made the logits.
Letters: n rows, V vocabulary, K proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dvi.drafting.base import DraftRequest, Proposal
from dvi.sampling import ChoicePoint, choose_draft
from dvi.sampling.choice import choose_draft_row, choose_row, host_rows
from dvi.sampling.filters import Logits
from dvi.sampling.noise import Purpose
from dvi.types import Source


@dataclass(slots=True)
class Draft:
    """One request's proposal; the lists grow by one element a token."""

    request: DraftRequest
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    rows: list[Logits] = field(default_factory=list)  # [V] each, with purpose PROPOSAL
    ended: bool = False  # nothing can follow

    @property
    def wants_more(self) -> bool:
        """Whether another token is to be drawn."""
        return not self.ended and len(self.ids) < self.request.draft_len

    @property
    def last_token(self) -> int:
        """What the next row follows."""
        return self.ids[-1] if self.ids else self.request.token

    @property
    def position(self) -> int:
        """Absolute index of ``last_token``."""
        return self.request.position + len(self.ids)

    def point(self) -> ChoicePoint:
        """Where the next token stands."""
        return ChoicePoint(self.request.params, self.position + 1)

    def finish(self, adapter_version: int) -> Proposal:
        """What was drawn."""
        return Proposal(
            ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            source=Source.NEURAL if self.ids else Source.TARGET,
            adapter_version=adapter_version,
            draft_logits=torch.from_numpy(np.stack(self.rows)) if self.rows else None,
        )


def draw(drafts: Sequence[Draft], logits: Tensor) -> None:
    """Add one token to each draft from raw ``logits`` [n, V], or end it; left as they are."""
    tokens = _draw_plain(drafts, logits) if _are_plain(drafts) else _draw_each(drafts, logits)
    drawn = torch.tensor([token or 0 for token in tokens], device=logits.device)
    picked = logits.gather(1, drawn[:, None])[:, 0]
    scores = (picked - logits.logsumexp(-1)).tolist()
    for draft, token, score in zip(drafts, tokens, scores, strict=True):
        if token is None:
            draft.ended = True
            continue
        draft.ids.append(token)
        draft.logprobs.append(score)
        rules, goes_on = draft.request.rules, draft.request.goes_on
        ended = rules is not None and not rules.advance(token)
        draft.ended = ended or (goes_on is not None and not goes_on(len(draft.ids) - 1, score))


def _are_plain(drafts: Sequence[Draft]) -> bool:
    requests = [draft.request for draft in drafts]
    return all(one.rules is None and one.purpose is Purpose.CHOICE for one in requests)


def _draw_plain(drafts: Sequence[Draft], logits: Tensor) -> Sequence[int | None]:
    return choose_draft(logits, [draft.point() for draft in drafts])


def _draw_each(drafts: Sequence[Draft], logits: Tensor) -> Sequence[int | None]:
    return [_draw_one(draft, row) for draft, row in zip(drafts, host_rows(logits), strict=True)]


def _draw_one(draft: Draft, raw: Logits) -> int | None:
    """The next token of a request with rules or of purpose PROPOSAL; None where there is none."""
    request, row = draft.request, raw.copy()
    if request.rules is not None and not request.rules.apply(row):
        return None
    if row.max() == -np.inf:  # whatever may stand here has no row in a trimmed head
        return None
    if request.purpose is Purpose.CHOICE or request.params.temperature == 0:
        return choose_draft_row(row, draft.point())
    draft.rows.append(row)
    return choose_row(row, draft.point(), request.purpose)
