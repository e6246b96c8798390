"""Calls in a model's answer, found while it is written.

Owns the difference between text and calls; knows neither requests nor how calls go to a client.
The pieces of an answer depend on its text alone, not on where ``push`` cuts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import regex

from serving.tools.pieces import CallPiece, Piece, TextPiece, whole_call
from serving.tools.scan import BracketScanner
from serving.tools.syntax import CLOSING, OPENING, ToolForm

_OBJECT = r'\{\s*"name"\s*:\s*"(?P<name>[\w-]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{'
# What begins a call whose keys stand in another order.
_BEGIN = r'(?P<body>\{\s*"(?:name|arguments|parameters|type|id)"\s*:)'
_MARK = {ToolForm.HERMES: rf"\s*{OPENING}", ToolForm.JSON: ""}


# A step of reading: pieces where it got on, None where it needs more text.
Step = Callable[[], list[Piece] | None]


class _Header:
    """The two ways in which a call begins, after ``mark``; both are matched partially."""

    def __init__(self, mark: str) -> None:
        start = rf"{mark}\s*(?P<list>\[)?\s*"
        self.usual = regex.compile(start + _OBJECT)
        self.begin = regex.compile(start + _BEGIN)


@dataclass(frozen=True, slots=True)
class CallReading:
    """How the answers of one request are read."""

    names: frozenset[str]  # of the functions that may be called
    form: ToolForm
    parallel: bool

    def open(self) -> CallReader:
        """A reader for one choice."""
        return CallReader(self.names, self.form, parallel=self.parallel)


class CallReader:
    """Reads one answer. A call is JSON that names one of ``names``; all else is text, as written.

    Arguments are given out while they are written, once name and key stand before them; a call in
    another order or shape comes whole. White space around calls is markup. Without ``parallel``
    the first call is the only one.
    """

    def __init__(self, names: frozenset[str], form: ToolForm, *, parallel: bool) -> None:
        self._names = names
        self._is_marked = form is ToolForm.HERMES
        self._parallel = parallel
        self._first = _Header(_MARK[form])
        self._next = _Header("")
        self._held = ""  # not decided
        self._in_list = False
        self._after_call = False
        self._num_found = 0
        self._scanner = BracketScanner()
        self._body_start = self._num_scanned = 0  # in _held, of a call that comes whole
        self._read: Step = self._read_text if self._is_marked else self._read_first

    @property
    def num_calls(self) -> int:
        """Calls given out so far."""
        return min(self._num_found, self._num_found if self._parallel else 1)

    def push(self, text: str) -> list[Piece]:
        """What became certain with ``text``."""
        self._held += text
        pieces: list[Piece] = []
        while (found := self._read()) is not None:
            pieces += found
        return pieces

    def finish(self) -> list[Piece]:
        """The answer is over: what was held back is text, unless it is a rest of markup."""
        undecided = (self._read_text, self._read_first, self._read_next, self._read_whole)
        held, self._held = self._held, ""
        if self._read not in undecided or (self._after_call and not held.strip()):
            return []
        return [TextPiece(held)] if held else []

    def _text(self, length: int) -> list[Piece]:
        """The first ``length`` characters held are text."""
        text, self._held = self._held[:length], self._held[length:]
        self._after_call &= not text
        return [TextPiece(text)] if text else []

    def _call(self, name: str | None, arguments: str) -> list[Piece]:
        """A piece of the newest call."""
        self._num_found += name is not None
        if self._num_found > 1 and not self._parallel:
            return []
        return [CallPiece(self._num_found - 1, arguments, name)]

    def _read_text(self) -> list[Piece] | None:
        """Marked form, outside calls: up to the next mark, or what may become one."""
        if self._after_call:
            self._held = self._held.lstrip()
        start = self._held.find(OPENING)
        if start < 0:
            return self._text(len(self._held) - _undecided(self._held)) or None
        self._read = self._read_first
        return self._text(len(self._held[:start].rstrip()))

    def _read_plain(self) -> list[Piece] | None:
        """Bare form, no call any more: all is text."""
        return self._text(len(self._held)) or None

    def _read_first(self) -> list[Piece] | None:
        return self._read_header(self._first)

    def _read_next(self) -> list[Piece] | None:
        return self._read_header(self._next)

    def _read_header(self, header: _Header) -> list[Piece] | None:
        """At what may be a call: up to its arguments."""
        match = header.usual.match(self._held, partial=True)
        if match is None:
            return self._read_begin(header)
        if match.partial:
            return None
        if match["name"] not in self._names:
            return self._no_call()
        self._in_list |= match["list"] is not None
        self._held = self._held[match.end() - 1 :]
        self._scanner = BracketScanner()
        self._read = self._read_arguments
        return self._call(match["name"], "")

    def _read_begin(self, header: _Header) -> list[Piece] | None:
        """At what is no call in the usual order."""
        match = header.begin.match(self._held, partial=True)
        if match is None:
            return self._no_call()
        if match.partial:
            return None
        self._in_list |= match["list"] is not None
        self._body_start = self._num_scanned = match.start("body")
        self._scanner = BracketScanner()
        self._read = self._read_whole
        return []

    def _read_arguments(self) -> list[Piece] | None:
        """Inside the arguments of a call: give them out as they come."""
        if not self._held:
            return None
        end = self._scanner.end(self._held)
        if end is not None:
            self._read = self._read_object_end
        text, self._held = self._held[:end], self._held[len(self._held) if end is None else end :]
        return self._call(None, text)

    def _read_object_end(self) -> list[Piece] | None:
        """After the arguments: the call's own bracket, or keys that say nothing to a client."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        if self._held[0] == ",":
            self._scanner = BracketScanner(depth=1)
            self._read = self._skip_keys
            return []
        self._held = self._held.removeprefix("}")
        return self._end_call()

    def _skip_keys(self) -> list[Piece] | None:
        end = self._scanner.end(self._held)
        self._held = "" if end is None else self._held[end:]
        return None if end is None else self._end_call()

    def _read_whole(self) -> list[Piece] | None:
        """A call in another order: known once its object is complete."""
        end = self._scanner.end(self._held, self._num_scanned)
        if end is None:
            self._num_scanned = len(self._held)
            return None
        call = whole_call(self._held[self._body_start : end], self._is_marked)
        if call is None or call[0] not in self._names:
            return self._no_call()
        self._held = self._held[end:]
        pieces = self._call(*call)
        return pieces + self._end_call()

    def _end_call(self) -> list[Piece]:
        self._after_call = True
        self._read = self._read_between
        return []

    def _read_between(self) -> list[Piece] | None:
        """After a call: the next of a list, the closing mark, or text again."""
        self._held = self._held.lstrip()
        if not self._held:
            return None
        if self._in_list and self._held[0] in ",]":
            self._in_list = self._held[0] == ","
            self._read = self._read_next if self._in_list else self._read_between
            self._held = self._held[1:]
            return []
        if self._is_marked:
            return self._read_closing()
        self._read = self._read_next if self._held[0] in ",;{" else self._read_plain
        self._held = self._held.removeprefix(",").removeprefix(";")
        return []

    def _read_closing(self) -> list[Piece] | None:
        if CLOSING.startswith(self._held) and self._held != CLOSING:
            return None
        self._held = self._held.removeprefix(CLOSING)
        self._in_list = False
        self._read = self._read_text
        return []

    def _no_call(self) -> list[Piece]:
        """What looked like a call is text; a mark in it is not looked at again."""
        self._in_list = False
        if not self._is_marked:
            self._read = self._read_plain
            return []
        self._read = self._read_text
        length = len(self._held) - len(self._held.lstrip())
        is_marked = self._held.startswith(OPENING, length)
        return self._text(length + len(OPENING) if is_marked else 0)


def _undecided(text: str) -> int:
    """Length of the end of ``text`` that may belong to a mark: its beginning, and space before."""
    for length in range(min(len(OPENING) - 1, len(text)), -1, -1):
        if text.endswith(OPENING[:length]):
            return len(text) - len(text[: len(text) - length].rstrip())
    raise AssertionError("every text ends with nothing")
