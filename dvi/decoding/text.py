"""From committed tokens to text that is safe to show, cut at the first stop string.

Owns the held-back tail of one answer; does not know tokens' meaning, rounds or limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TextDecoder(Protocol):
    """Incremental detokenizer of one answer (``dvi.modeling.Detokenizer``)."""

    def push(self, token_id: int) -> str:
        """Text that became final with this token; empty while a character is incomplete."""

    def flush(self) -> str:
        """What the last tokens left incomplete, as far as it can be shown; called once."""


class DecoderFactory(Protocol):
    """Makes the decoder of one answer (``dvi.modeling.Tokenizer.detokenizer``)."""

    def __call__(self, *, skip_special_tokens: bool) -> TextDecoder:
        """A fresh decoder; with the flag, special tokens have no text."""


class StopText:
    """Text of one answer, given out only once no stop string can still reach back into it.

    The result depends on the text alone, not on where tokens or rounds end: the stop string that is
    complete first wins, the longest of those that end at the same character.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool) -> None:
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._held = ""  # not shown yet: a proper prefix of some stop string
        self._ready = ""  # may be shown
        self.stopped = False

    def push(self, text: str) -> bool:
        """Append text; True when it completed a stop string, after which nothing may follow."""
        assert not self.stopped
        window = self._held + text
        cut = self._first_match(window)
        if cut is None:
            self.push_early(text)
            return False
        start, end = cut
        self._ready += window[: end if self._include_stop else start]
        self._held = ""
        self.stopped = True
        return True

    def push_early(self, text: str) -> None:
        """Append text in which no stop string may end yet; one that ends later may begin in it."""
        window = self._held + text
        split = len(window) - self._num_undecided(window)
        self._ready += window[:split]
        self._held = window[split:]

    def finish(self) -> None:
        """The answer ends without a stop string: what was held back may be shown."""
        self._ready += self._held
        self._held = ""

    def take(self) -> str:
        """Text to show now; each character is given out once."""
        text, self._ready = self._ready, ""
        return text

    def _first_match(self, window: str) -> tuple[int, int] | None:
        """Start and end of the stop string that ends first in ``window``."""
        matches = [
            (start + len(stop), start) for stop in self._stop if (start := window.find(stop)) >= 0
        ]
        if not matches:
            return None
        end, start = min(matches)
        return start, end

    def _num_undecided(self, window: str) -> int:
        """Length of the longest end of ``window`` that begins some stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(window)), 0, -1):
            tail = window[-length:]
            if any(stop.startswith(tail) for stop in self._stop if len(stop) > length):
                return length
        return 0
