"""Where did these tokens stand before? An index of n-grams over documents of token ids.

Owns the log of ids and the tables over it; does not know scopes, budgets or probabilities.
A *place* is an index into the log: the token that followed an n-gram. Places only grow, so a place
stays valid when the head of the log is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

END = -1  # stands after every document and is no token id, so no match crosses it
MAX_PLACES = 16  # newest occurrences kept of one n-gram: enough to tell shares apart
_HEAD_SLACK = 4096  # dropped ids at the head of the log before it is moved


@dataclass(frozen=True, slots=True)
class Matches:
    """Occurrences of the longest end of a context that was seen before."""

    length: int  # tokens matched, at most the limit asked for; 0 where nothing matched
    places: tuple[int, ...]  # ascending, each followed by at least one id


NO_MATCH = Matches(0, ())


class NgramIndex:
    """One log of documents with a table per n-gram order. Single thread.

    Memory: one id and at most one table entry per order a token, some 0.1 KB each.
    """

    def __init__(self, orders: Sequence[int]) -> None:
        self._orders = tuple(sorted(orders))
        self._ids: list[int] = [END]
        self._base = 0  # place of _ids[0]
        self._start = 1  # place where the open document starts
        # Hash of n ids -> the place after them, or all of them, ascending. Two n-grams of one
        # 64-bit hash cost a wrong proposal at worst.
        self._tables: dict[int, dict[int, int | list[int]]] = {n: {} for n in self._orders}

    @property
    def end(self) -> int:
        """Place of the next id."""
        return self._base + len(self._ids)

    @property
    def num_entries(self) -> int:
        """Keys of all tables."""
        return sum(len(table) for table in self._tables.values())

    def extend(self, ids: Sequence[int], num_unseen: int = 0) -> None:
        """Append ids to the open document; the first ``num_unseen`` are context, never a place."""
        log, base = self._ids, self._base
        first = len(log)
        log.extend(ids)
        for n in self._orders:
            table = self._tables[n]
            low = max(first + num_unseen, self._start - base + n)
            if low >= len(log):
                continue
            grams = zip(*(log[low - n + i : len(log) - n + i] for i in range(n)), strict=True)
            for place, key in enumerate(map(hash, grams), base + low):
                known = table.get(key)
                if known is None:
                    table[key] = place
                elif isinstance(known, int):
                    table[key] = [known, place]
                else:
                    known.append(place)
                    if len(known) > MAX_PLACES:
                        del known[0]

    def close(self) -> None:
        """End the open document; the next id starts another."""
        self._ids.append(END)
        self._start = self.end

    def longest(self, context: Sequence[int], limit: int) -> Matches:
        """The longest end of ``context``, of at most ``limit`` tokens, that stands in the log."""
        for n in reversed(self._orders):
            if n > min(limit, len(context)):
                continue
            known = self._tables[n].get(hash(tuple(context[-n:])))
            if known is not None:
                places = (known,) if isinstance(known, int) else tuple(known)
                return self._lengthen(places, context, n, min(limit, len(context)))
        return NO_MATCH

    @property
    def ids(self) -> Sequence[int]:
        """The log itself, read only; every closed document ends with END."""
        return self._ids

    def offsets(self, places: Sequence[int]) -> list[int]:
        """Where ``places`` lie in ``ids`` until the next removal."""
        return [place - self._base for place in places]

    def place(self, offset: int) -> int:
        """Of an offset in ``ids``."""
        return self._base + offset

    def slice(self, start: int, length: int) -> list[int]:
        """Ids from ``start`` on."""
        return self._ids[start - self._base : start - self._base + length]

    def remove(self, start: int, length: int) -> None:
        """Erase a closed document: its places leave the tables, its ids become END."""
        log, first = self._ids, start - self._base
        for n in self._orders:
            table = self._tables[n]
            for index in range(first + n, first + length):
                self._forget(table, hash(tuple(log[index - n : index])), self._base + index)
        log[first : first + length] = [END] * length
        self._drop_head()

    def _forget(self, table: dict[int, int | list[int]], key: int, place: int) -> None:
        known = table.get(key)
        if isinstance(known, int):
            if known == place:
                del table[key]
        elif known is not None and place in known:
            known.remove(place)
            if len(known) == 1:
                table[key] = known[0]

    def _drop_head(self) -> None:
        """Drop erased documents at the head, all but one END, once they are many."""
        num_erased = 0
        while num_erased < len(self._ids) and self._ids[num_erased] == END:
            num_erased += 1
        if num_erased > _HEAD_SLACK or num_erased == len(self._ids):
            del self._ids[: num_erased - 1]
            self._base += num_erased - 1

    def _lengthen(
        self, places: tuple[int, ...], context: Sequence[int], length: int, limit: int
    ) -> Matches:
        """Compare further back; the first id of the log is END, so no index falls below it."""
        log, base = self._ids, self._base
        best, kept = length, []
        for place in places:
            reach, back = length, place - base - 1
            while reach < limit and log[back - reach] == context[-1 - reach]:
                reach += 1
            if reach > best:
                best, kept = reach, [place]
            elif reach == best:
                kept.append(place)
        return Matches(best, tuple(kept))
