"""What a draft model's cache holds of each row, and what it has yet to read.

Owns token ids by position; does not know tensors. A draft model's keys and values depend on its
weights, so that a text which outlives an exchange of them is marked: running requests go on with
it, nobody starts from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dvi.modeling.plan import Segment


@dataclass(slots=True)
class RowText:
    """One row. Invariant: positions [0, num_written) of the cache are those of ``ids``."""

    row: int
    ids: list[int] = field(default_factory=list)  # by position, the newest proposals included
    num_written: int = 0
    is_mixed: bool = False  # some were written by weights that were exchanged since
    is_free: bool = False  # the request ended; the next one may start from it

    @property
    def debt(self) -> int:
        """Tokens that are known and not written."""
        return len(self.ids) - self.num_written

    def show(self, start: int, ids: Sequence[int]) -> None:
        """From ``start`` on the text is ``ids`` and ends with them.

        Positions that nobody ever showed are taken as they are: only measurements have such.
        """
        self._begin(start)
        if start > len(self.ids):
            self.ids += [0] * (start - len(self.ids))
            self.num_written = start
        known = self.ids[start : start + len(ids)]
        same = 0
        while same < len(known) and known[same] == ids[same]:
            same += 1
        self.num_written = min(self.num_written, start + same)
        self.ids[start:] = ids

    def take_over(self, source: RowText, start: int, end: int) -> range:
        """Have the source's text in [start, end); returns the positions whose keys and values are
        to be copied from it: none of a text that an exchange of weights went through.
        """
        self._begin(start)
        self.ids[start:] = source.ids[start:end]
        can_copy = not source.is_mixed and self.num_written >= start
        stop = min(end, source.num_written) if can_copy else start
        copied = range(start, max(stop, start))
        self.num_written = min(self.num_written, copied.start) + len(copied)
        return copied

    def missing(self, most: int | None = None) -> Segment:
        """The next tokens to write, ``most`` at most; of a text without debt its last token again,
        for its logits.
        """
        start = min(self.num_written, len(self.ids) - 1)
        end = len(self.ids) if most is None else min(start + most, len(self.ids))
        return Segment(self.row, start, tuple(self.ids[start:end]))

    def exchange(self) -> None:
        """The weights are others from now on."""
        self.is_mixed = self.is_mixed or self.num_written > 0

    def _begin(self, start: int) -> None:
        """A new request on a freed row keeps what the engine starts it from, unless it is mixed."""
        if not self.is_free:
            return
        self.num_written = 0 if self.is_mixed else min(self.num_written, start)
        self.is_mixed = self.is_free = False
