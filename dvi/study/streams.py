"""Orders of requests: which request of which domain comes when.

Owns the shapes of drift; knows neither texts nor answers. A request is (domain, number); a domain's
requests come in an order that the seed decides.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

Request = tuple[str, int]  # domain, number of its prompt from 0

KINDS = ("stationary", "sharp", "gradual", "return")


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A stream of ``per_domain`` requests of each domain; ``return`` takes twice the first's."""

    kind: str  # one of KINDS
    domains: tuple[str, ...]
    per_domain: int
    temperature: float = 0.0

    def needed(self) -> dict[str, int]:
        """How many prompts of each domain the stream takes."""
        counts = dict.fromkeys(self.domains, self.per_domain)
        if self.kind == "return":
            counts[self.domains[0]] *= 2
        return counts

    def requests(self, seed: int) -> list[Request]:
        """The stream; a function of plan and seed."""
        assert self.kind in KINDS
        queues = {name: _shuffled(name, count, seed) for name, count in self.needed().items()}
        if self.kind == "gradual":
            return _gradual(self.domains, queues, seed)
        order = [*self.domains, self.domains[0]] if self.kind == "return" else self.domains
        return [queues[name].pop() for name in order for _ in range(self.per_domain)]


def stretches(requests: Sequence[Request]) -> list[tuple[int, int]]:
    """[first, end) of each run of one domain."""
    starts = [i for i in range(len(requests)) if not i or requests[i][0] != requests[i - 1][0]]
    return list(zip(starts, [*starts[1:], len(requests)], strict=True))


def _shuffled(domain: str, count: int, seed: int) -> list[Request]:
    requests = [(domain, number) for number in range(count)]
    random.Random(f"{seed}-{domain}").shuffle(requests)
    return requests


def _gradual(domains: Sequence[str], queues: dict[str, list[Request]], seed: int) -> list[Request]:
    """From the first domain to the second: the chance of the second grows from 0 to 1."""
    rng = random.Random(f"{seed}-gradual")
    first, second = (queues[name] for name in domains)
    total = len(first) + len(second)
    stream = []
    for place in range(total):
        wants_second = rng.random() < place / (total - 1)
        queue = second if (wants_second and second) or not first else first
        stream.append(queue.pop())
    return stream
