"""How one session fares against the rates of everybody.

Owns the counts by row and session; does not know what is expected of a proposal.
"""

from __future__ import annotations

from dataclasses import dataclass

from dvi.decoding.session import Session
from dvi.types import Source

SESSION_PRIOR = 8.0  # expected acceptances that a session's own count is weighed against
SESSION_DECAY = 0.98  # a judged token


@dataclass(slots=True)
class Fit:
    """Accepted against expected proposals of one session and source, newest first in weight."""

    accepted: float = 0.0
    expected: float = 0.0

    def add(self, expected: float, *, hit: bool) -> None:
        """Count one judged proposal."""
        self.accepted = self.accepted * SESSION_DECAY + hit
        self.expected = self.expected * SESSION_DECAY + expected

    def value(self) -> float:
        """Factor on the rates of everybody."""
        return (self.accepted + SESSION_PRIOR) / (self.expected + SESSION_PRIOR)


@dataclass(slots=True)
class RowFits:
    """Fits of the session on one row."""

    session: Session
    by_source: dict[Source, Fit]


class Fits:
    """One entry a row, begun anew by the next session on it. Decode thread only."""

    def __init__(self) -> None:
        self._rows: dict[int, RowFits] = {}

    def of(self, session: Session, source: Source) -> Fit:
        """The session's own."""
        fits = self._rows.get(session.row)
        if fits is None or fits.session is not session:
            fits = RowFits(session, {Source.NEURAL: Fit(), Source.MEMORY: Fit()})
            self._rows[session.row] = fits
        return fits.by_source[source]
