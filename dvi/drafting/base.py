"""The drafter's interface: what a drafter is asked, what it answers, who may call which verb when.

Owns the types that cross from drafting to decoding; does not know how any drafter proposes.
Letters: N tokens of one ragged pass, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from torch import Tensor

from dvi.sampling.noise import Purpose
from dvi.types import SamplingParams, Source

if TYPE_CHECKING:
    from dvi.modeling.cache import KvCache
    from dvi.modeling.plan import Plan
    from dvi.registry.manifest import Adapter
    from dvi.sampling.filters import Logits


class AdapterRefused(ValueError):
    """A published version that this drafter must not load; the message is one line."""


# (index of the newest proposal, its raw log-probability at T = 1) -> whether to propose another.
GoesOn = Callable[[int, float], bool]


class Match(NamedTuple):
    """What speaks for one proposal of a memory."""

    length: int  # tokens before it that were seen before in this order
    agreed: float  # occurrences that went on with this token, in parts where it was likely
    total: int  # all occurrences looked at


@dataclass(frozen=True, slots=True)
class Context:
    """The text of a request as far as a memory may read it."""

    tokens: Sequence[int]  # prompt + output so far: the session's own list, it only grows
    prediction_ids: tuple[int, ...] = ()
    scope: str = ""


class DraftRules(Protocol):
    """What a request does to logits before a token is chosen; stands after ``token``.

    A neural drafter applies it to every row it draws from and walks it along its proposals; the
    caller walks it back.
    """

    def apply(self, row: Logits) -> bool:
        """Process one row [V] in place; False where no token can stand here any more."""

    def advance(self, token_id: int) -> bool:
        """The next row follows ``token_id``; False where nothing may follow it."""


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
    context: Context | None = None  # None where no memory is asked
    goes_on: GoesOn | None = None  # None: always, up to draft_len
    rules: DraftRules | None = None  # None: raw logits decide
    # CHOICE: agree with the target under its own noise. PROPOSAL: draw exactly from the draft's
    # distribution and return the logits; a token that was drawn must not be dropped again.
    purpose: Purpose = Purpose.CHOICE


@dataclass(frozen=True, slots=True)
class Proposal:
    """Tokens proposed for positions ``position + 1 ..`` of one request.

    Letters: K proposals, V vocabulary of the target.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # raw draft log-probability of each id at T = 1; none in MEMORY
    source: Source  # TARGET when ids is empty
    adapter_version: int
    matches: tuple[Match, ...] = ()  # one an id; MEMORY only
    # [K, V] processed logits that each id was drawn from (purpose PROPOSAL); None: one-hot
    draft_logits: Tensor | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class DraftWeights:
    """A version ready for use: merged, packed and checked. Each kind has a subclass.

    Immutable once made, so that it may cross threads; only the drafter that made it reads it.
    """

    adapter_version: int  # 0 is the untrained draft
    # Teacher-forced acceptance on held-out traces, published with the version; None if unknown.
    expected_acceptance: float | None = field(default=None, kw_only=True)


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

    @property
    def expected_acceptance(self) -> float | None:
        """What was published of the weights in use."""

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        """Take the shallow states [N, H] of a prefill chunk or verify pass.

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

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """Both rows have the same tokens up to ``end``: give ``row`` the draft's own state of
        positions [start, end) from ``source_row``, which has observed them under any version.
        """

    def release(self, row: int) -> None:
        """Forget what is kept for a row that was freed; what ``share`` may ask for stays."""
