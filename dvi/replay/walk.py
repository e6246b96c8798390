"""All stored rows once, in batches, and what they add up to.

Owns the loop over a cursor; does not know who wants the rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from dvi.replay.rows import StoredTrace, advance
from dvi.replay.store import ReplayStore
from dvi.types import AcceptanceCounts, Trace

BATCH_ROWS = 64  # about 0.5 KB a token: tens of MB at long answers


def batches(store: ReplayStore) -> Iterator[list[StoredTrace]]:
    """Every row that is there when its turn comes; no transaction is open between two batches."""
    cursor: dict[str, int] = {}
    while rows := store.read(cursor, BATCH_ROWS):
        yield rows
        cursor = advance(cursor, rows)


def acceptance(store: ReplayStore) -> AcceptanceCounts:
    """Rounds, judged and accepted proposals over all stored rows; ``proposed`` holds the judged.

    Reads the whole store: for a command, not for a scrape.
    """
    counts = AcceptanceCounts()
    for rows in batches(store):
        for row in rows:
            add_rounds(counts, row.trace)
    return counts


def add_rounds(counts: AcceptanceCounts, trace: Trace) -> None:
    """Count the rounds of one trace."""
    for one in trace.rounds:
        judged = len(one.proposed_ids)  # a trace keeps nothing behind the first reject
        counts.add_round(one.source, judged, judged, one.num_accepted)
