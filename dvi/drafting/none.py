"""``drafter=none``: plain decoding through the same engine.

Owns the drafter that proposes nothing; does not know the target.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.base import AdapterRefused, DraftRequest, DraftWeights, Proposal
from dvi.drafting.branch import DrafterRoom
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter
from dvi.types import Source


class NoDrafter:
    """Always version 0, always empty proposals."""

    kind = "none"
    adapter_version = 0
    expected_acceptance = None

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        """Nothing to keep."""

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:  # noqa: ARG002
        """An empty proposal a request."""
        return [Proposal((), (), Source.TARGET, 0) for _ in requests]

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        """Version 0; any other is refused."""
        if adapter is not None:
            raise AdapterRefused(f"drafter=none takes no adapter, got version {adapter.version}")
        return DraftWeights(0)

    def load(self, weights: DraftWeights) -> None:
        """Nothing to exchange."""

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """No state of its own."""

    def release(self, row: int) -> None:
        """Nothing is kept for a row."""


def make_no_drafter(
    config: DrafterConfig,  # noqa: ARG001
    target: TargetModel,  # noqa: ARG001
    room: DrafterRoom,  # noqa: ARG001
) -> NoDrafter:
    """The factory's form of it."""
    return NoDrafter()
