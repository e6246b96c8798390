"""Runners that take exactly known times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dvi.bench.bench import Ids
from dvi.bench.race import Answer, How
from dvi.decoding.stats import Phase
from dvi.types import AcceptanceCounts


@dataclass
class FakeClock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class FakeRunner:
    """Answers each prompt with its own ids, one after the other at ``token_s`` a token."""

    name: str
    clock: FakeClock
    token_s: float
    log: list[str] = field(default_factory=list)
    rounds: int = 1  # an answer
    spent: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))

    def run(self, prompts: Sequence[Ids], how: How) -> list[Answer]:
        self.log.append(self.name)
        answers = []
        for prompt in prompts:
            self.clock.now_s += self.token_s * len(prompt)
            self.spent[Phase.VERIFY] += 0.75 * self.token_s * len(prompt)
            self.spent[Phase.LOG] += 0.25 * self.token_s * len(prompt)
            accepted = len(prompt) - self.rounds
            counts = AcceptanceCounts(self.rounds, accepted, accepted, accepted)
            answers.append(Answer(prompt, self.token_s, counts))
        return answers

    def phase_s(self) -> Mapping[Phase, float]:
        return dict(self.spent)
