"""Open prompts: many tasks on many subjects, no two alike, so that answers hardly repeat.

Owns the texts; does not know how they are sent.
"""

from __future__ import annotations

import itertools
import random

MAX_PROMPTS = 1000

_TASKS = (
    "Explain {subject} to {reader}.",
    "Write the first paragraph of a story about {subject} for {reader}.",
    "What do people often get wrong about {subject}? Answer for {reader}.",
    "Give {reader} three pieces of advice about {subject}.",
    "Why does {subject} matter? Convince {reader}.",
    "Compare {subject} today with a hundred years ago, for {reader}.",
    "Describe {subject} without naming it, so that {reader} can guess it.",
)
_SUBJECTS = (
    "tides", "bread", "chess", "glaciers", "honey bees", "jazz", "bridges", "vaccines",
    "lighthouses", "inflation", "coral reefs", "trains", "earthquakes", "tea", "maps", "owls",
    "volcanoes", "gardening", "satellites", "photography", "rivers", "clocks", "languages",
    "recycling", "mountain weather", "libraries", "sleep", "spices", "cycling", "electric motors",
)  # fmt: skip
_READERS = (
    "a child of eight", "a busy manager", "a retired sailor", "a student of history",
    "somebody who is sceptical", "a new neighbour", "a radio audience",
)  # fmt: skip


def open_prompts(count: int) -> list[str]:
    """``count`` distinct questions; fewer are the first of more, at most MAX_PROMPTS."""
    assert 0 <= count <= MAX_PROMPTS
    every = list(itertools.product(_TASKS, _SUBJECTS, _READERS))
    random.Random("open").shuffle(every)
    return [task.format(subject=subject, reader=reader) for task, subject, reader in every[:count]]
