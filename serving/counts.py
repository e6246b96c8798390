"""Counters that only the server can keep: outcomes of HTTP requests, ignored fields, opt-outs.

Knows nothing of tokens' making: the engine's ledger counts those.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from dvi.decoding import Outcome
from dvi.types import FinishReason


@dataclass(frozen=True, slots=True)
class CountsView:
    """A consistent copy."""

    outcomes: dict[Outcome, int]
    ignored_fields: int
    opted_out: int
    duplicates: int
    undelivered_tokens: int


class ServerCounts:
    """Written by the event loop, read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outcomes = dict.fromkeys(Outcome, 0)
        self._ignored_fields = 0
        self._opted_out = 0
        self._duplicates = 0
        self._undelivered_tokens = 0

    def request_ended(self, outcome: Outcome) -> None:
        """One HTTP request for text ended so."""
        with self._lock:
            self._outcomes[outcome] += 1

    def fields_ignored(self, number: int) -> None:
        """A request had so many keys that nobody defines."""
        with self._lock:
            self._ignored_fields += number

    def trace_opted_out(self) -> None:
        """A finished choice was not stored because the request or the operator said so."""
        with self._lock:
            self._opted_out += 1

    def trace_duplicate(self) -> None:
        """A finished choice was not stored because its id was being answered already."""
        with self._lock:
            self._duplicates += 1

    def tokens_undelivered(self, number: int) -> None:
        """Tokens of a choice that ended well inside a request that was then cancelled or failed.

        The engine counts them as generated and not as cancelled; nobody got them.
        """
        with self._lock:
            self._undelivered_tokens += number

    def view(self) -> CountsView:
        """All counters at one moment."""
        with self._lock:
            return CountsView(
                dict(self._outcomes),
                self._ignored_fields,
                self._opted_out,
                self._duplicates,
                self._undelivered_tokens,
            )


def outcome_of(reasons: list[FinishReason]) -> Outcome:
    """Outcome of a request from those of its choices: the worst one, ``length`` over ``stop``."""
    for reason in (FinishReason.FAILED, FinishReason.CANCELLED, FinishReason.LENGTH):
        if reason in reasons:
            return Outcome(reason.value)
    return Outcome.STOP
