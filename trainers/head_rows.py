"""The list of the draft's head rows in a checkpoint, with the counts that it is chosen from.

Owns the tensor names; does not know when a list is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from trainers.counts import TokenCounts
from trainers.draft import Draft

COUNTS, LIST = "tokens/counts", "vocab/"


def list_tensors(draft: Draft, tokens: TokenCounts) -> dict[str, Tensor]:
    """What a checkpoint keeps; copies."""
    listed = {} if draft.vocab is None else draft.vocab.tensors()
    named = {LIST + name: tensor.clone() for name, tensor in listed.items()}
    return {COUNTS: tokens.counts.clone(), **named}


def restore_list(tensors: Mapping[str, Tensor], draft: Draft, tokens: TokenCounts) -> None:
    """Go back to a checkpoint; one of a draft with all rows starts a list without counts."""
    if COUNTS in tensors:
        tokens.restore(tensors[COUNTS])
    listed = {n.removeprefix(LIST): t for n, t in tensors.items() if n.startswith(LIST)}
    draft.take_list(listed or None)
