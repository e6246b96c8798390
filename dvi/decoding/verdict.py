"""What passes between the verifier, a session and the ledger.

Owns three value types; does not know how a token was chosen or counted.
Letters: A = accepted + 1 committed tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dvi.drafting import Proposal
from dvi.types import Delta, Round


@dataclass(frozen=True, slots=True)
class Verdict:
    """The target's answer to one proposal."""

    proposal: Proposal
    num_accepted: int  # longest prefix of the proposal that equals the target's own choices
    # [A] accepted proposals, then one choice of the target; without it where the answer is over
    committed_ids: tuple[int, ...]
    logits: Tensor  # [A, V] raw target logits that chose them; a view, valid until the next step


@dataclass(frozen=True, slots=True)
class Commit:
    """What one round really added to one session, after stop rules and limits cut it.

    Invariant: ``len(delta.token_ids) == round.num_accepted + 1``.
    """

    delta: Delta
    round: Round
    num_proposed: int  # counted proposals: up to the cut when the request ended, else all
