"""The append-only record of publish, promote and rollback, and what follows from it.

Owns the line format and the rule which version is in service; does no file work but reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import takewhile
from pathlib import Path


class Act(StrEnum):
    """What happened."""

    PUBLISH = "publish"  # the number is taken, before the folder appears
    PROMOTE = "promote"
    ROLLBACK = "rollback"
    CANARY = "canary"  # drafts its share of rounds from now on
    SETTLE = "settle"  # drafts all rounds from now on: its trial ended well, or there was none
    DISMISS = "dismiss"  # failed as a canary when a newer version was in service already


@dataclass(frozen=True, slots=True)
class Event:
    """One line of ``history.jsonl``."""

    act: Act
    version: int  # published or now in service; a canary's own number
    replaced: int  # in service before; for a publish as well
    reason: str
    time_s: float

    def to_line(self) -> bytes:
        """Its JSON, without the line end."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()


def read_history(path: Path) -> list[Event]:
    """All whole lines of ``path``; a line torn by a kill is passed over, its act never happened."""
    if not path.exists():
        return []
    events: list[Event] = []
    for line in path.read_bytes().splitlines():
        try:
            raw = json.loads(line)
            events.append(Event(**{**raw, "act": Act(raw["act"])}))
        except (ValueError, TypeError, KeyError):
            continue
    return events


def highest_number(events: Iterable[Event]) -> int:
    """The largest version number ever taken."""
    return max((event.version for event in events), default=0)


def service_stack(events: Iterable[Event]) -> list[int]:
    """Versions in the order in which they went into service, the live one last.

    A rollback removes what it left and never returns to it: a version that was rolled back comes
    into the stack again only by a new promotion. Version 0 lies under an empty stack.
    """
    stack: list[int] = []
    for event in events:
        if event.act is Act.PROMOTE:
            stack.append(event.version)
        elif event.act is Act.ROLLBACK:
            stack = _after_rollback(stack, event)
        elif event.act is Act.DISMISS:
            stack = [version for version in stack if version != event.version]
    return stack


def is_settled(events: Iterable[Event], version: int) -> bool:
    """Whether ``version`` was given all rounds since it was promoted last; 0 needs nobody's word.

    A promotion alone does not say so: it may wait for its trial, be in it, or come while no server
    runs.
    """
    acts = [event.act for event in events if event.version == version]
    decided = [act for act in acts if act in (Act.PROMOTE, Act.SETTLE)]
    return version == 0 or decided[-1:] == [Act.SETTLE]


def to_load(events: Iterable[Event], current: int) -> list[int]:
    """Trained versions to start with, best first: ``current``, then those in service before it."""
    stack = service_stack(events)
    while stack and stack[-1] != current:
        stack.pop()  # promoted, but the pointer says otherwise
    return list(takewhile(bool, dict.fromkeys([current, *reversed(stack)])))


def _after_rollback(stack: Sequence[int], event: Event) -> list[int]:
    left = [version for version in stack if version != event.replaced]
    while left and left[-1] != event.version:
        left.pop()
    return left


def rollback_targets(events: Iterable[Event]) -> list[int]:
    """Versions a rollback may go to, best first; 0 is the last resort and not listed."""
    stack = service_stack(events)
    live = stack[-1:]
    return [version for version in reversed(stack) if [version] != live]
