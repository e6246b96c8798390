"""``drafter=memory``: what followed the same words before, in this request or in what was served.

Owns the memory of each row and what it may read; needs no target and no weights. Does not know
which matches are worth verifying: it says what speaks for each proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dvi.config import DrafterConfig
from dvi.drafting.base import (
    AdapterRefused,
    Context,
    DraftRequest,
    DraftWeights,
    Proposal,
)
from dvi.drafting.branch import DrafterRoom
from dvi.drafting.ngrams import NgramIndex
from dvi.drafting.occurrence import OurText
from dvi.drafting.reading import Search, read_on
from dvi.drafting.served import ServedText
from dvi.drafting.shares import Shares, shares_of
from dvi.modeling.cache import KvCache
from dvi.modeling.plan import Plan
from dvi.modeling.target import TargetModel
from dvi.registry.manifest import Adapter
from dvi.types import Source, Trace

NOTHING = Proposal((), (), Source.TARGET, 0)
# Tokens of a prompt's end that are kept before its answer: what the answer may have copied.
PROMPT_TOKENS = 128


@dataclass(slots=True)
class RowText:
    """The request on one row: what the client expects, then prompt and output."""

    index: NgramIndex
    num_indexed: int = 0  # tokens of the request


def index_orders(min_match: int, max_match: int) -> tuple[int, ...]:
    """Lengths of n-gram that have a table: doubling, since a match is lengthened by comparing."""
    orders = [min_match]
    while orders[-1] * 2 <= min(max_match, 8):
        orders.append(orders[-1] * 2)
    return tuple(orders)


def make_memory_drafter(
    config: DrafterConfig,
    target: TargetModel,  # noqa: ARG001
    room: DrafterRoom,  # noqa: ARG001
) -> MemoryDrafter:
    """An empty memory. Raises ValueError for lengths that contradict each other."""
    if config.memory_min_match > config.memory_max_match:
        raise ValueError(
            f"drafter.memory_min_match={config.memory_min_match} must not be above "
            f"drafter.memory_max_match={config.memory_max_match}"
        )
    return MemoryDrafter(config)


class MemoryDrafter:
    """Longest match proposes. The decode thread calls everything but ``remember`` and ``forget``.

    What was copied from a prompt is proposed as ours has it (``dvi.drafting.occurrence``).

    A request reads its own text, and what was served to its scope: ``request`` and ``off`` read
    nothing served, ``global`` reads all, ``user`` (and null) what the request's own scope was
    served. ``off`` proposes nothing at all.
    """

    kind = "memory"
    adapter_version = 0
    expected_acceptance = None

    def __init__(self, config: DrafterConfig) -> None:
        self._orders = index_orders(config.memory_min_match, config.memory_max_match)
        self._max_match = config.memory_max_match
        self._scope = config.memory_scope
        self._remembers = config.memory_scope not in ("request", "off")
        context_len = max(self._max_match, PROMPT_TOKENS)
        self.served = ServedText(self._orders, config.memory_max_tokens, context_len)
        self._rows: dict[int, RowText] = {}

    def remember(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        scope: str,
        shares: Shares | None = None,
    ) -> None:
        """Learn a finished answer, for requests of its scope only. Any thread.

        ``shares`` are those of its tokens; without them sampled requests hear what it says alone.
        """
        if self._remembers and output_ids:
            self.served.remember(prompt_ids, output_ids, self._shared(scope), shares)

    def remember_trace(self, trace: Trace, scope: str) -> None:
        """The same, with what the target held likely. Any thread."""
        if self._remembers:
            self.remember(trace.prompt_ids, trace.output_ids, scope, shares_of(trace))

    def forget(self, prompt_ids: Sequence[int], output_ids: Sequence[int], scope: str) -> None:
        """Erase an answer that must not be kept. Any thread; done in turn as rounds go by."""
        self.served.forget(prompt_ids, output_ids, self._shared(scope))

    def observe(self, hidden: Tensor, plan: Plan) -> None:
        """Nothing to keep: a memory reads tokens."""

    def propose(self, requests: Sequence[DraftRequest], cache: KvCache) -> list[Proposal]:  # noqa: ARG002
        """See Drafter."""
        return self.recall(requests)

    def recall(self, requests: Sequence[DraftRequest]) -> list[Proposal]:
        """What a memory proposes, without logprobs; costs microseconds and touches no cache."""
        if self._scope == "off":
            return [NOTHING for _ in requests]
        self.served.take_in()
        return [self._recall(request) for request in requests]

    def prepare(self, adapter: Adapter | None) -> DraftWeights:
        """Version 0; any other is refused."""
        if adapter is not None:
            raise AdapterRefused(f"drafter=memory takes no adapter, got version {adapter.version}")
        return DraftWeights(0)

    def load(self, weights: DraftWeights) -> None:
        """Nothing to exchange."""

    def share(self, source_row: int, row: int, start: int, end: int) -> None:
        """No state that depends on positions: a memory reads tokens."""

    def release(self, row: int) -> None:
        """Forget the request of this row."""
        self._rows.pop(row, None)

    def _shared(self, scope: str) -> str:
        return "" if self._scope == "global" else scope

    def _recall(self, request: DraftRequest) -> Proposal:
        if request.context is None or not request.draft_len:
            return NOTHING
        context = request.context
        text = self._read(request.row, context)
        served = None if self._scope == "request" else self.served.text(self._shared(context.scope))
        ours = OurText(text.index, [*text.index.ids])
        search = Search(ours, served, context.tokens[-self._max_match :], self._max_match)
        ids, matches = read_on(search, request)
        return Proposal(ids, (), Source.MEMORY, 0, matches) if ids else NOTHING

    def _read(self, row: int, context: Context) -> RowText:
        """The row's index, with all tokens committed since."""
        text = self._rows.get(row)
        if text is None:
            text = self._rows[row] = RowText(NgramIndex(self._orders))
            if context.prediction_ids:
                before = context.tokens[-self._max_match :]
                text.index.extend([*before, *context.prediction_ids], len(before))
                text.index.close()
        text.index.extend(context.tokens[text.num_indexed :])
        text.num_indexed = len(context.tokens)
        return text
