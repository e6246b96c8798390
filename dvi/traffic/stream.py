"""Narrow domains, one after the other, from seeded templates.

Owns the texts; does not know how they are sent. Prompts stay under 140 tokens with the chat
template, answers run to some 70, so that a domain is many requests of one kind of traffic.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DOMAINS = ("sql", "support", "json", "python")

# table -> labels and numbers that are asked for
_TABLES = {
    "orders": (("customer", "city"), ("total", "discount")),
    "employees": (("department", "office"), ("salary", "age")),
    "products": (("category", "brand"), ("price", "weight")),
    "visits": (("country", "page"), ("duration", "clicks")),
    "invoices": (("currency", "client"), ("amount", "tax")),
    "flights": (("airline", "airport"), ("delay", "distance")),
}
_AGGREGATES = ("average", "largest", "smallest", "total")
_NAMES = ("Anna", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas")
_GOODS = ("camera", "coffee maker", "desk lamp", "backpack", "keyboard", "bicycle helmet")
_FAULTS = (
    "arrived broken",
    "arrived half empty",
    "arrived open",
    "arrived empty",
    "arrived without a manual",
)
_CITIES = ("Lisbon", "Oslo", "Vienna", "Dublin", "Prague", "Madrid", "Athens", "Helsinki")
_CHECKS = (
    "is positive",
    "is negative",
    "is zero",
    "is even",
    "is odd",
    "is above 10",
    "is below 100",
    "divides by 3",
    "divides by 7",
)
_LISTS = ("prices", "ages", "scores", "lengths", "weights", "totals", "counts", "delays", "marks")
_WORK = ("sums", "counts", "squares and sums", "doubles and sums")
_JOBS = ("nurse", "engineer", "teacher", "baker", "lawyer", "designer", "driver", "chemist")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request of the stream: a worked example of its domain, then the question."""

    index: int  # place in the stream, from 0
    domain: str  # one of DOMAINS
    question: str

    def messages(self) -> list[dict[str, str]]:
        """The chat messages."""
        example = _EXAMPLES[self.domain]
        return [
            {"role": "system", "content": example.system},
            {"role": "user", "content": example.question},
            {"role": "assistant", "content": example.answer},
            {"role": "user", "content": self.question},
        ]


@dataclass(frozen=True, slots=True)
class _Example:
    system: str
    question: str
    answer: str


_EXAMPLES = {
    "sql": _Example(
        "Write SQL.",
        "average rent of flats by city since 2020, top 10",
        "SELECT city, AVG(rent) AS average_rent\nFROM flats\nWHERE created_at >= '2020-01-01'\n"
        "GROUP BY city\nORDER BY average_rent DESC\nLIMIT 10;",
    ),
    "support": _Example(
        "Answer customers.",
        "I am Olga. My order 47, a mirror, arrived late.",
        "Dear Olga, thank you for your message about order 47. We are very sorry that the "
        "mirror arrived late. We will refund the shipping cost within three days. "
        "Kind regards, your support team",
    ),
    "json": _Example(
        "Extract JSON.",
        "Olga, 33, is a painter in Rome with 5 years of experience.",
        '{\n  "name": "Olga",\n  "age": 33,\n  "job": "painter",\n  "city": "Rome",\n'
        '  "experience": 5\n}',
    ),
    "python": _Example(
        "Write Python.",
        "a function that multiplies all x in sizes where x is above 2",
        "def multiply_sizes(sizes):\n    result = 1\n    for x in sizes:\n        if x > 2:\n"
        "            result *= x\n    return result",
    ),
}


def _sql(rng: random.Random, year: int = 2020) -> str:
    table = rng.choice(list(_TABLES))
    labels, numbers = _TABLES[table]
    return (
        f"{rng.choice(_AGGREGATES)} {rng.choice(numbers)} of {table} by {rng.choice(labels)} "
        f"since {year}, top 10"
    )


def _support(rng: random.Random) -> str:
    return (
        f"I am {rng.choice(_NAMES)}. My order {rng.randrange(10, 99)}, "
        f"a {rng.choice(_GOODS)}, {rng.choice(_FAULTS)}."
    )


def _json(rng: random.Random) -> str:
    return (
        f"{rng.choice(_NAMES)}, {rng.randrange(21, 64)}, is a {rng.choice(_JOBS)} in "
        f"{rng.choice(_CITIES)} with {rng.randrange(2, 15)} years of experience."
    )


def _python(rng: random.Random) -> str:
    return (
        f"a function that {rng.choice(_WORK)} all x in {rng.choice(_LISTS)} where x "
        f"{rng.choice(_CHECKS)}"
    )


def _wide_sql(rng: random.Random) -> str:
    return _sql(rng, rng.randrange(2010, 2024))


# Domains whose first template has few questions go on with another one.
_FEW = 80
_WIDE_MAKERS = {"sql": _wide_sql}
_MAKERS: dict[str, Callable[[random.Random], str]] = {
    "sql": _sql,
    "support": _support,
    "json": _json,
    "python": _python,
}


def make_stream(per_domain: int, seed: int, domains: Sequence[str] = DOMAINS) -> list[Prompt]:
    """``per_domain`` distinct prompts of each domain, domain after domain; a function of seed.

    A domain's prompts do not depend on the other domains, and fewer are the first of more;
    at most 300 of each.
    """
    prompts: list[Prompt] = []
    for domain in domains:
        rng = random.Random(f"{seed}-{domain}")
        seen: set[str] = set()
        while len(seen) < per_domain:
            maker = _MAKERS[domain]
            if len(seen) >= _FEW:
                maker = _WIDE_MAKERS.get(domain, maker)
            question = maker(rng)
            if question not in seen:
                seen.add(question)
                prompts.append(Prompt(len(prompts), domain, question))
    return prompts
