"""The drafter's interface: what a drafter is asked, what it answers, who may call which verb when.

Owns the types that cross from drafting to decoding; does not know how any drafter proposes.
Letters: N tokens of one ragged pass, H hidden width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from dvi.types import SamplingParams, Source

if TYPE_CHECKING:
    from dvi.modeling.cache import KvCache
    from dvi.modeling.plan import Plan
    from dvi.registry.manifest import Adapter


class AdapterRefused(ValueError):
    """A published version that this drafter must not load; the message is one line."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One request's share of a draft batch.

    Invariant: the caches hold positions [0, position) of this row; ``token`` stands at
    ``position`` and is the last committed one.
    """

    row: int
    position: int  # absolute index of ``token`` in prompt + output
    token: int
    draft_len: int  # proposals wanted; 0 proposes nothing
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens proposed for positions ``position + 1 ..`` of one request."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # raw draft log-probability of each id at T = 1; as long as ids
    source: Source  # TARGET when ids is empty
    adapter_version: int


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """A version ready for use: merged, packed and checked. Each kind has a subclass.

    Immutable once made, so that it may cross threads; only the drafter that made it reads it.
    """

    adapter_version: int  # 0 is the untrained draft


class Drafter(Protocol):
    """Proposes tokens from shallow states. Its output never reaches the target's arithmetic.

    One decode thread calls everything but ``prepare``. Invariant at a round boundary: the drafter's
    own cache holds every committed position but the last, whoever proposed it.
    """

    @property
    def kind(self) -> str:
        """The config's word for it."""

    @property
    def adapter_version(self) -> int:
        """Version of the weights in use."""

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        """Take the shallow states [N, H] of a prefill chunk or verify pass, padding included.

        Called after the target's shallow pass with the same plan, before acceptance is known:
        what a reject leaves behind lies past the row's length and is overwritten.
        """

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:
        """One proposal a request, in order; ``cache`` is the target's.

        Writes shallow KV of the target at ``position ..`` of each row; verification overwrites it.
        """

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        """Check, merge and pack a version; None is version 0. Any thread; changes nothing.

        Raises AdapterRefused where name, shape, dtype, value, drafter or base does not match.
        """

    def load(self, weights: DraftWeights) -> None:
        """Use these weights from now on: an exchange of references, between rounds only."""

    def release(self, row: int) -> None:
        """Forget what is kept for a row that was freed."""
