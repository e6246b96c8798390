"""What was served before, by scope: bounded, forgettable, filled a little at a time.

Owns documents and their eviction; does not know how a match becomes a proposal. Text of one scope
is never seen from another.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from dvi.drafting.ngrams import NgramIndex
from dvi.drafting.shares import Row, Shares

# Tokens indexed a round: below a millisecond, and an answer of usual length at once.
TAKE_IN_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Document:
    """One answer with the prompt's end before it, in the log of its scope."""

    scope: str
    start: int  # place of its first token
    length: int
    shares: Shares | None  # of the last tokens; None where they are not known


_by_start = attrgetter("start")


class ScopeText:
    """What was served to one scope: a log of documents with an index over it."""

    def __init__(self, orders: Sequence[int]) -> None:
        self.index = NgramIndex(orders)
        self.documents: list[Document] = []  # oldest first, so by ascending start

    @property
    def ids(self) -> Sequence[int]:
        """The log, read only; see NgramIndex."""
        return self.index.ids

    def shares_at(self, place: int) -> Row | None:
        """See Text."""
        at = self.index.place(place)
        document = self.documents[bisect_right(self.documents, at, key=_by_start) - 1]
        shares = document.shares
        if shares is None:
            return None
        row = at - (document.start + document.length - len(shares.ids))
        return Row(shares.ids[row], shares.mass[row]) if row >= 0 else None

    def add(self, document: Document, ids: Sequence[int], num_context: int) -> None:
        """A document at the log's end."""
        self.index.extend(ids, num_context)
        self.index.close()
        self.documents.append(document)

    def remove(self, document: Document) -> None:
        """Erase one of the documents."""
        self.index.remove(document.start, document.length)
        del self.documents[bisect_left(self.documents, document.start, key=_by_start)]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One answer to remember, or to forget."""

    scope: str
    ids: tuple[int, ...]  # the prompt's end, then the answer
    num_context: int  # ids of the prompt among them
    is_kept: bool
    shares: Shares | None = None  # of the answer's tokens


class ServedText:
    """The newest ``max_tokens`` tokens of answers over all scopes; the oldest answer leaves first.

    ``remember``, ``forget`` and ``clear`` from any thread: they only put in line. Everything else,
    and the indexing itself, on the decode thread.
    """

    def __init__(self, orders: Sequence[int], max_tokens: int, context_len: int) -> None:
        self._orders = tuple(orders)
        self.max_tokens = max_tokens
        self._context_len = context_len
        self._arrivals: deque[Arrival | None] = (
            deque()
        )  # None: clear; append and popleft are atomic
        self._texts: dict[str, ScopeText] = {}
        self._documents: deque[Document] = deque()  # of all scopes, oldest first
        self.num_tokens = 0

    def remember(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        scope: str,
        shares: Shares | None = None,
    ) -> None:
        """Learn an answer; of one longer than the whole memory, its end."""
        ids, num_context = self._cut(prompt_ids, output_ids)
        self._arrivals.append(Arrival(scope, ids, num_context, is_kept=True, shares=shares))

    def forget(self, prompt_ids: Sequence[int], output_ids: Sequence[int], scope: str) -> None:
        """Erase every copy of an answer from a scope, those still in line too."""
        ids, num_context = self._cut(prompt_ids, output_ids)
        self._arrivals.append(Arrival(scope, ids, num_context, is_kept=False))

    def clear(self) -> None:
        """Erase everything, what is in line too, before the next proposal. Any thread."""
        self._arrivals.clear()
        self._arrivals.append(None)

    def take_in(self, max_tokens: int | None = TAKE_IN_TOKENS) -> None:
        """Index what is in line, oldest first, until ``max_tokens`` are done; None takes all."""
        done = 0
        while self._arrivals and (max_tokens is None or done < max_tokens):
            arrival = self._arrivals.popleft()
            if arrival is None:
                self._erase_all()
                continue
            done += len(arrival.ids)
            if arrival.is_kept:
                self._add(arrival)
            else:
                self._erase(arrival)

    def text(self, scope: str) -> ScopeText | None:
        """What a request of this scope may match."""
        return self._texts.get(scope)

    @property
    def num_documents(self) -> int:
        """Answers held."""
        return len(self._documents)

    def _cut(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int]
    ) -> tuple[tuple[int, ...], int]:
        """The prompt's end with the answer, and how many of these ids are the prompt's."""
        context = tuple(prompt_ids[-self._context_len :])
        ids = (context + tuple(output_ids))[-self.max_tokens :]
        return ids, max(len(ids) - len(output_ids), 0)

    def _add(self, arrival: Arrival) -> None:
        while self._documents and self.num_tokens + len(arrival.ids) > self.max_tokens:
            self._remove(self._documents.popleft())
        text = self._texts.setdefault(arrival.scope, ScopeText(self._orders))
        document = Document(arrival.scope, text.index.end, len(arrival.ids), arrival.shares)
        text.add(document, arrival.ids, arrival.num_context)
        self._documents.append(document)
        self.num_tokens += document.length

    def _erase(self, arrival: Arrival) -> None:
        text = self._texts.get(arrival.scope)
        if text is None:
            return
        ids = list(arrival.ids)
        kept: deque[Document] = deque()
        for document in self._documents:
            same_place = document.scope == arrival.scope and document.length == len(ids)
            if same_place and text.index.slice(document.start, document.length) == ids:
                self._remove(document)
            else:
                kept.append(document)
        self._documents = kept

    def _erase_all(self) -> None:
        self._texts.clear()
        self._documents.clear()
        self.num_tokens = 0

    def _remove(self, document: Document) -> None:
        text = self._texts[document.scope]
        text.remove(document)
        self.num_tokens -= document.length
        if not text.documents:
            del self._texts[document.scope]
