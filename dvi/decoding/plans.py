"""What may be proposed, and what a session is to propose in the coming round.

Owns the hand-over between controller and proposer; does not know how lengths are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dvi.decoding.calibration import NeuralRates
from dvi.decoding.lengths import StepCosts, worth_verifying
from dvi.drafting import Proposal
from dvi.drift import Turn
from dvi.types import Source


@dataclass(frozen=True, slots=True)
class Offers:
    """What may be proposed, before anything is drafted."""

    recalled: Sequence[Proposal]  # one a session; empty where the memory knows nothing
    can_draft: bool  # there is a learned draft
    adapter_version: int = 0
    published: float | None = None  # teacher-forced acceptance of that version
    turn: Turn = Turn.ALONE  # arms of a trial are planned alike


@dataclass(slots=True)
class Drafting:
    """One session's learned draft of one round: stops it, and drops what is not worth verifying."""

    rates: NeuralRates
    fit: float  # how this session fares against the rates
    goodput: float  # tokens a second that the time must earn
    costs: StepCosts
    step_s: float  # one more proposal
    num_others: int  # proposals of other sessions in the pass
    most: int
    fewest: int = 0  # proposals to verify whatever their confidence
    reach: list[float] = field(default_factory=list)

    def goes_on(self, index: int, logprob: float) -> bool:
        """Whether to draft another one after proposal ``index``, drafted with ``logprob``.

        Decided by the chance that all so far are accepted, the product of their confidences. Every
        length still possible is looked at: a pass may get dear and then stay so.
        """
        before = self.reach[-1] if self.reach else 1.0
        self.reach.append(before * min(self.rates.after(index, logprob) * self.fit, 1.0))
        num_drafted = len(self.reach)
        passes, chance, gained = self.costs.passes, self.reach[-1], 0.0
        for place in range(num_drafted, self.most):
            chance *= min(self.rates.before(place) * self.fit, 1.0)
            gained += chance
            verify_s = passes[self.num_others + place + 1] - passes[self.num_others + num_drafted]
            draft_s = (place + 1 - num_drafted) * self.step_s
            if gained >= self.goodput * (draft_s + verify_s):
                return True
        return False

    def num_kept(self) -> int:
        """Proposals to verify of those drafted."""
        kept = worth_verifying(self.reach, self.goodput, self.costs.passes, self.num_others)
        return max(kept, min(self.fewest, len(self.reach)))


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What one session proposes in the coming round."""

    source: Source = Source.TARGET
    length: int = 0  # at most
    drafting: Drafting | None = None  # None: exactly ``length``

    def num_drafted(self) -> int:
        """Steps that the learned draft took for this session, once it has."""
        if self.source is not Source.NEURAL:
            return 0
        return self.length if self.drafting is None else len(self.drafting.reach)


NO_DRAFT = DraftPlan()
