"""Keeping rows of an engine in rounds while single steps are timed.

Owns the filling and emptying; knows no clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from dvi.bench.bench import Ids, Subject
from dvi.bench.ways import Way


def tokens_needed(subject: Subject, prompts: Sequence[Ids], num_steps: int) -> int:
    """Tokens a row may commit before ``num_steps`` steps of the whole batch have passed.

    While the last prompts are read the first rows decode already, and every step may commit K + 1.
    """
    decoding = subject.config.decoding
    chunk = min(decoding.prefill_chunk_len, decoding.shared_prefill_chunk_len)
    filling = sum(-(-len(prompt) // chunk) for prompt in prompts)
    return (filling + num_steps + 1) * (decoding.draft_len + 1)


def fill(subject: Subject, way: Way, prompts: Sequence[Ids], max_tokens: int) -> list[str]:
    """Put requests on rows until all of them decode; returns their ids."""
    names = []
    for seed, prompt in enumerate(prompts):
        params = way.endless(max_tokens, seed)
        request = subject.request(prompt, params, speculation=way.speculation)
        subject.engine.submit(request, lambda _: None)
        names.append(request.request_id)
    while subject.engine.step().num_rounds < len(prompts):
        pass
    return names


def empty(subject: Subject, names: Sequence[str]) -> None:
    """Cancel these requests and wait until their rows are free."""
    for name in names:
        subject.engine.cancel(name)
    while subject.engine.step().worked:
        pass
