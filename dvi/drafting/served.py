"""What was served before, by scope: bounded, forgettable, filled a little at a time.

Owns documents and their eviction; does not know how a match becomes a proposal. Text of one scope
is never seen from another.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from dvi.drafting.ngrams import NgramIndex

# Tokens indexed a round: below a millisecond, and an answer of usual length at once.
TAKE_IN_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Document:
    """One answer with the prompt's end before it, in the log of its scope."""

    scope: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """One answer to remember, or to forget."""

    scope: str
    ids: tuple[int, ...]  # the prompt's end, then the answer
    num_context: int  # ids of the prompt among them
    is_kept: bool


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
        self._indexes: dict[str, NgramIndex] = {}
        self._documents: deque[Document] = deque()  # oldest first
        self._num_documents: Counter[str] = Counter()  # by scope
        self.num_tokens = 0

    def remember(self, prompt_ids: Sequence[int], output_ids: Sequence[int], scope: str) -> None:
        """Learn an answer; of one longer than the whole memory, its end."""
        self._arrivals.append(self._arrival(prompt_ids, output_ids, scope, is_kept=True))

    def forget(self, prompt_ids: Sequence[int], output_ids: Sequence[int], scope: str) -> None:
        """Erase every copy of an answer from a scope, those still in line too."""
        self._arrivals.append(self._arrival(prompt_ids, output_ids, scope, is_kept=False))

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

    def index(self, scope: str) -> NgramIndex | None:
        """What a request of this scope may match."""
        return self._indexes.get(scope)

    @property
    def num_documents(self) -> int:
        """Answers held."""
        return len(self._documents)

    def _arrival(
        self, prompt_ids: Sequence[int], output_ids: Sequence[int], scope: str, *, is_kept: bool
    ) -> Arrival:
        context = tuple(prompt_ids[-self._context_len :])
        ids = (context + tuple(output_ids))[-self.max_tokens :]
        return Arrival(scope, ids, max(len(ids) - len(output_ids), 0), is_kept)

    def _add(self, arrival: Arrival) -> None:
        while self._documents and self.num_tokens + len(arrival.ids) > self.max_tokens:
            self._remove(self._documents.popleft())
        index = self._indexes.setdefault(arrival.scope, NgramIndex(self._orders))
        document = Document(arrival.scope, index.end, len(arrival.ids))
        index.extend(arrival.ids, arrival.num_context)
        index.close()
        self._documents.append(document)
        self._num_documents[document.scope] += 1
        self.num_tokens += document.length

    def _erase(self, arrival: Arrival) -> None:
        index = self._indexes.get(arrival.scope)
        if index is None:
            return
        ids = list(arrival.ids)
        kept: deque[Document] = deque()
        for document in self._documents:
            same_place = document.scope == arrival.scope and document.length == len(ids)
            if same_place and index.slice(document.start, document.length) == ids:
                self._remove(document)
            else:
                kept.append(document)
        self._documents = kept

    def _erase_all(self) -> None:
        self._indexes.clear()
        self._documents.clear()
        self._num_documents.clear()
        self.num_tokens = 0

    def _remove(self, document: Document) -> None:
        self._indexes[document.scope].remove(document.start, document.length)
        self.num_tokens -= document.length
        self._num_documents[document.scope] -= 1
        if not self._num_documents[document.scope]:
            del self._indexes[document.scope], self._num_documents[document.scope]
