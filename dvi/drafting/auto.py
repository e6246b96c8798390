"""``drafter=auto``: a learned draft and a memory side by side.

Owns the pair; does not choose between them: that takes costs and counts, which live in decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dvi.drafting.base import Drafter, DraftRequest, DraftWeights, Proposal
from dvi.drafting.memory import MemoryDrafter
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan
from dvi.registry.manifest import Adapter


class AutoDrafter:
    """Weights, versions and caches are the learned draft's; the memory needs none.

    Asked as one drafter, without an engine that weighs the two, the memory proposes where it knows
    anything and the learned draft elsewhere.
    """

    kind = "auto"

    def __init__(self, neural: Drafter, memory: MemoryDrafter) -> None:
        self.neural = neural
        self.memory = memory

    @property
    def adapter_version(self) -> int:
        """Version of the weights in use."""
        return self.neural.adapter_version

    @property
    def expected_acceptance(self) -> float | None:
        """See Drafter."""
        return self.neural.expected_acceptance

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        """See Drafter."""
        self.neural.observe(hidden, plan)

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:
        """See Drafter."""
        recalled = self.memory.recall(requests)
        silent = [one for one, known in zip(requests, recalled, strict=True) if not known.ids]
        drafted = iter(self.neural.propose(silent, cache))
        return [known if known.ids else next(drafted) for known in recalled]

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        """See Drafter."""
        return self.neural.prepare(adapter)

    def load(self, weights: DraftWeights) -> None:
        """See Drafter."""
        self.neural.load(weights)

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """See Drafter."""
        self.neural.share(source_row, row, start, end)

    def release(self, row: int) -> None:
        """See Drafter."""
        self.neural.release(row)
        self.memory.release(row)


@dataclass(frozen=True, slots=True)
class Sources:
    """Who may propose in an engine."""

    neural: Drafter | None
    memory: MemoryDrafter | None


def sources_of(drafter: Drafter) -> Sources:
    """The parts of a drafter that are chosen between."""
    if isinstance(drafter, AutoDrafter):
        return Sources(drafter.neural, drafter.memory)
    if isinstance(drafter, MemoryDrafter):
        return Sources(None, drafter)
    return Sources(None if drafter.kind == "none" else drafter, None)
