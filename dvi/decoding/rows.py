"""Cache rows: which are free, what each one holds, and which prefix a prompt may start from.

Owns the free rows and the record of their content; a freed row keeps its content until it is given
away. Does not know tensors: whoever copies is told from where to where.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dvi.decoding.faults import FAULTS
from dvi.decoding.session import Session
from dvi.types import DecodeRequest

logger = logging.getLogger(__name__)

# A prompt waits while an earlier one computes this many tokens or more of it: a pass costs what 20
# to 30 positions add to it, and the earlier prompt has the first share of every pass anyway.
MIN_WAIT_TOKENS = 16
COMPARED_AT_ONCE = 64  # tokens; lists compare in C

# (source row, session, end): make [session.num_cached, end) of the session's row equal the source's
ShareRows = Callable[[int, Session, int], None]


@dataclass(frozen=True, slots=True)
class Owner:
    """For whom a row's content was computed."""

    scope: str
    family: int  # choices that were submitted together
    is_kept: bool  # False: nobody outside the family may start from it

    def may_read(self, other: Owner) -> bool:
        """Whether this one may start from what the other one's pass computed."""
        is_own = self.family == other.family
        return is_own or (other.is_kept and self.scope == other.scope)


@dataclass(slots=True)
class Record:
    """A row's content: positions [0, num_cached) of the session, which may have ended."""

    session: Session
    owner: Owner
    used: int  # turn in which it was last written, read or freed


@dataclass(frozen=True, slots=True)
class Shared:
    """The first ``length`` tokens of a prompt are those of another row's session as well."""

    record: Record
    length: int  # positions that either prefill needs; the row need not have all of them yet

    @property
    def num_valid(self) -> int:
        """How many of them can be copied now."""
        session = self.record.session
        return min(self.length, session.num_cached) if session.is_whole else 0

    @property
    def is_all(self) -> bool:
        """Whether the row holds nothing else."""
        return self.num_valid == self.record.session.num_cached


@dataclass(frozen=True, slots=True)
class Place:
    """A free row for a request, and the rows that share a prefix with it."""

    row: int
    owner: Owner
    shared: tuple[Shared, ...]


class Rows:
    """Decode thread only. ``scope`` is decoding.prefix_scope.

    A prefix is offered as far as its positions are computed, and only where ``Owner.may_read``.
    The last prompt token is always computed: its logits choose the first token of the answer.
    """

    def __init__(
        self,
        num_rows: int,
        scope: str | None,
        *,
        share: ShareRows,
        release: Callable[[int], None],
    ) -> None:
        self._scope = scope
        self._share = share
        self._release = release
        self._free = set(range(num_rows))
        self._records: dict[int, Record] = {}
        self._shared: dict[int, tuple[Shared, ...]] = {}  # by row of the session that may copy
        self._turn = 0

    @property
    def num_free(self) -> int:
        """Rows that can be taken."""
        return len(self._free)

    def place(self, request: DecodeRequest, family: int) -> Place:
        """Where a request goes; takes nothing yet. There must be a free row."""
        is_kept = request.log and self._scope not in ("request", "off")
        scope = "" if self._scope == "global" else request.scope
        owner = Owner(scope, family, is_kept)
        shared = self._find(request, owner)
        return Place(self._choose(shared, owner), owner, shared)

    def take(self, place: Place, session: Session) -> None:
        """Give the row away, and the session every prefix that is there already."""
        self._free.remove(place.row)
        for one in place.shared:
            if one.record.session.row == place.row:
                session.reuse(one.num_valid)
        self._records[place.row] = Record(session, place.owner, self._next_turn())
        self._shared[place.row] = place.shared
        self.reuse(session)

    def reuse(self, session: Session) -> int:
        """Copy what others have computed of a prompt by now; returns the number of tokens."""
        best = _longest(self._readable(session))
        if best is None or best.num_valid <= session.num_cached:
            return 0
        num_tokens = best.num_valid - session.num_cached
        try:
            self._share(best.record.session.row, session, best.num_valid)
        except FAULTS:  # costs speed only: the prompt is computed
            logger.exception("a prefix could not be copied")
            self._shared[session.row] = ()
            return 0
        session.reuse(best.num_valid)
        best.record.used = self._next_turn()
        return num_tokens

    def waits(self, session: Session) -> bool:
        """Whether a session before it is computing enough of its prompt to wait for that.

        It always is computed: the first of those who still read waits for nobody.
        """
        num_needed = session.num_cached + session.num_prefill
        for one in self._readable(session):
            leader = one.record.session
            is_reading = leader.row not in self._free and leader.num_prefill > 0
            gain = one.length - session.num_cached if leader.is_whole and is_reading else 0
            if gain >= MIN_WAIT_TOKENS or (gain > 0 and one.length == num_needed):
                return True
        return False

    def free(self, row: int) -> None:
        """Take the row back. What its session computed stays until the row is given away."""
        self._free.add(row)
        self._shared.pop(row, None)
        self._records[row].used = self._next_turn()
        self._release(row)

    def forget(self, row: int) -> None:
        """Offer nothing of this row: what it holds cannot be trusted."""
        self._records.pop(row, None)

    def _find(self, request: DecodeRequest, owner: Owner) -> tuple[Shared, ...]:
        """Every row that shares a prefix. Prompt log-probabilities need every position's pass."""
        if self._scope == "off" or request.sampling.prompt_logprobs is not None:
            return ()
        prompt = list(request.prompt_ids)
        readable = [one for one in self._records.values() if owner.may_read(one.owner)]
        found = [Shared(one, shared_len(prompt, one.session.tokens)) for one in readable]
        return tuple(one for one in found if one.length)

    def _choose(self, shared: Sequence[Shared], owner: Owner) -> int:
        """The row of the longest prefix where nothing is lost by it; else the least useful row."""
        best = _longest(shared)
        if best is None or not best.num_valid:
            return min(self._free, key=self._worth)
        source = best.record.session.row
        stays_offered = owner.is_kept or not best.record.owner.is_kept
        if source in self._free and best.is_all and stays_offered:
            return source
        return min(self._free - {source} or self._free, key=self._worth)

    def _worth(self, row: int) -> tuple[bool, int, int]:
        """Rows of use to nobody come first, then those that were not used for longest."""
        record = self._records.get(row)
        if record is None or not record.owner.is_kept:
            return False, 0, row
        return True, record.used, row

    def _readable(self, session: Session) -> list[Shared]:
        """Rows that shared a prefix with a session's prompt and still hold it."""
        found = self._shared.get(session.row, ())
        return [one for one in found if self._records.get(one.record.session.row) is one.record]

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn


def _longest(shared: Sequence[Shared]) -> Shared | None:
    """The longest prefix that can be copied now; of equals the one used last."""
    return max(shared, key=lambda one: (one.num_valid, one.record.used), default=None)


def shared_len(prompt: list[int], tokens: list[int]) -> int:
    """Equal leading tokens, without the last one of either: it has no keys and values yet."""
    most = min(len(prompt), len(tokens)) - 1
    start = 0
    while start < most:
        end = min(start + COMPARED_AT_ONCE, most)
        if prompt[start:end] != tokens[start:end]:
            while prompt[start] == tokens[start]:
                start += 1
            return start
        start = end
    return max(most, 0)
