"""What came back for one prompt, and sums over ten of them.

Owns the arithmetic of alpha, tokens per round and speed; does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 10  # requests that share a row of the table and a point of the picture


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request, as the client saw it."""

    index: int  # of the prompt
    domain: str
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    rounds: int
    proposed: int
    judged: int
    accepted: int
    adapter_versions: tuple[int, int]  # first and last that drafted it
    seed: int
    fingerprint: str
    started_s: float  # since the start of its pass
    finished_s: float


@dataclass(frozen=True, slots=True)
class Block:
    """Sums over consecutive answers of one domain."""

    domain: str
    first: int  # index of the first prompt
    last: int
    tokens: int
    rounds: int
    proposed: int
    judged: int
    accepted: int
    adapter_versions: tuple[int, int]
    seconds: float  # wall time between the end of the block before and the end of this one

    @property
    def acceptance_rate(self) -> float | None:
        """Alpha: accepted / judged; None where nothing was proposed."""
        return self.accepted / self.judged if self.judged else None

    @property
    def tokens_per_round(self) -> float | None:
        """Committed tokens a round, the target's own token included."""
        return self.tokens / self.rounds if self.rounds else None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the block over its wall time, all streams together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


def sum_block(answers: Sequence[Answer], since_s: float) -> Block:
    """The block of these answers, at least one, whose wall time began at ``since_s``."""
    versions = [version for answer in answers for version in answer.adapter_versions]
    return Block(
        domain=answers[0].domain,
        first=min(answer.index for answer in answers),
        last=max(answer.index for answer in answers),
        tokens=sum(len(answer.token_ids) for answer in answers),
        rounds=sum(answer.rounds for answer in answers),
        proposed=sum(answer.proposed for answer in answers),
        judged=sum(answer.judged for answer in answers),
        accepted=sum(answer.accepted for answer in answers),
        adapter_versions=(min(versions), max(versions)),
        seconds=max(answer.finished_s for answer in answers) - since_s,
    )


def split_blocks(answers: Sequence[Answer], size: int = BLOCK) -> list[Block]:
    """Blocks of ``size`` in stream order, no block across two domains."""
    blocks: list[Block] = []
    since_s = 0.0
    group: list[Answer] = []
    ordered = sorted(answers, key=lambda answer: answer.index)
    for place, answer in enumerate(ordered):
        group.append(answer)
        following = ordered[place + 1] if place + 1 < len(ordered) else None
        if len(group) == size or following is None or following.domain != answer.domain:
            blocks.append(sum_block(group, since_s))
            since_s = max(since_s, *(member.finished_s for member in group))
            group = []
    return blocks


def domain_ends(answers: Sequence[Answer]) -> dict[str, tuple[Block, Block]]:
    """The first and the last BLOCK answers of each domain, in stream order."""
    ordered = sorted(answers, key=lambda answer: answer.index)
    groups: dict[str, list[Answer]] = {}
    for answer in ordered:
        groups.setdefault(answer.domain, []).append(answer)

    def block(part: Sequence[Answer]) -> Block:
        before = [one.finished_s for one in ordered if one.index < part[0].index]
        return sum_block(part, max(before, default=0.0))

    return {domain: (block(own[:BLOCK]), block(own[-BLOCK:])) for domain, own in groups.items()}


def pass_speed(answers: Sequence[Answer]) -> float:
    """Tokens per second of a whole pass: all tokens over the wall time, prompts included."""
    seconds = max(answer.finished_s for answer in answers)
    return sum(len(answer.token_ids) for answer in answers) / seconds
