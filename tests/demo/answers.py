"""Answers as the demo's client would bring them."""

from __future__ import annotations

from dvi.demo.answers import Answer


def make_answer(
    index: int,
    token_ids: tuple[int, ...] = (1, 2, 3),
    *,
    domain: str = "sql",
    rounds: int = 2,
    judged: int = 2,
    accepted: int = 1,
    versions: tuple[int, int] = (0, 0),
    finished_s: float | None = None,
) -> Answer:
    """One answer; the counting rule holds by default: 3 tokens = 2 rounds + 1 accepted."""
    return Answer(
        index=index,
        domain=domain,
        prompt_ids=(7, 8),
        token_ids=token_ids,
        rounds=rounds,
        proposed=4 * rounds,
        judged=judged,
        accepted=accepted,
        adapter_versions=versions,
        seed=index,
        fingerprint="fp",
        started_s=0.0,
        finished_s=finished_s if finished_s is not None else index + 1.0,
    )
