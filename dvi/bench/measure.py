"""The measurements: whole answers, single steps, swaps.

Owns what is timed; every function returns plain numbers of one repeat.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from dvi.bench.prompts import Ids
from dvi.bench.subject import Subject
from dvi.decoding.batch import decode_batch
from dvi.decoding.stats import Phase
from dvi.drafting import DraftWeights
from dvi.types import SamplingParams

DECODE_PHASES = (Phase.DRAFT, Phase.VERIFY, Phase.COMMIT, Phase.LOG)


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are decoded in one measurement."""

    name: str
    speculation: bool
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def params(self, max_tokens: int, seed: int) -> SamplingParams:
        """Sampling fields; the end token does not stop, so that every repeat does equal work."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seed=seed,
            ignore_eos=True,
        )


WAYS = (
    Way("plain", speculation=False),
    Way("plain sampled", speculation=False, temperature=1.0),
    Way("draft", speculation=True),
    Way("draft sampled", speculation=True, temperature=1.0),
    Way("draft filtered", speculation=True, temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
)


@dataclass(frozen=True, slots=True)
class AnswerSpeed:
    """Whole answers, prompts included."""

    tokens_per_s: float
    acceptance_rate: float | None
    tokens_per_round: float
    log_share: float  # trace logging / decode time


def answer_speed(subject: Subject, way: Way, batch_size: int) -> AnswerSpeed:
    """Decode all prompts of the bench, ``batch_size`` at a time."""
    engine, bench = subject.engine, subject.config.bench
    before = engine.stats()
    rounds = accepted = judged = tokens = 0
    start_s = time.perf_counter()
    for first in range(0, len(subject.prompts), batch_size):
        requests = [
            subject.request(
                prompt, way.params(bench.max_tokens, first + i), speculation=way.speculation
            )
            for i, prompt in enumerate(subject.prompts[first : first + batch_size])
        ]
        for result in decode_batch(engine, requests):
            tokens += len(result.token_ids)
            rounds += result.counts.rounds
            judged += result.counts.judged
            accepted += result.counts.accepted
    seconds = time.perf_counter() - start_s
    after = engine.stats()
    spent = {phase: after.phase_s[phase] - before.phase_s[phase] for phase in DECODE_PHASES}
    return AnswerSpeed(
        tokens_per_s=tokens / seconds,
        acceptance_rate=accepted / judged if judged else None,
        tokens_per_round=tokens / rounds,
        log_share=spent[Phase.LOG] / sum(spent.values()),
    )


def _batch(subject: Subject, batch_size: int) -> list[Ids]:
    return [subject.prompts[i % len(subject.prompts)] for i in range(batch_size)]


def tokens_needed(subject: Subject, batch_size: int, num_steps: int) -> int:
    """Tokens a row may commit before ``num_steps`` steps of the whole batch have passed.

    While the last prompts are read the first rows decode already, and every step may commit K + 1.
    """
    decoding = subject.config.decoding
    chunk = min(decoding.prefill_chunk_len, decoding.shared_prefill_chunk_len)
    filling = sum(-(-len(prompt) // chunk) for prompt in _batch(subject, batch_size))
    return (filling + num_steps + 1) * (decoding.draft_len + 1)


def _fill(subject: Subject, way: Way, batch_size: int, max_tokens: int) -> list[str]:
    """Put requests on rows until all of them decode; returns their ids."""
    names = []
    for i, prompt in enumerate(_batch(subject, batch_size)):
        request = subject.request(prompt, way.params(max_tokens, i), speculation=way.speculation)
        subject.engine.submit(request, lambda _: None)
        names.append(request.request_id)
    while subject.engine.step().num_rounds < batch_size:
        pass
    return names


def _empty(subject: Subject, names: list[str]) -> None:
    for name in names:
        subject.engine.cancel(name)
    while subject.engine.step().worked:
        pass


def step_ms(subject: Subject, way: Way, batch_size: int) -> float:
    """Median milliseconds of a step while ``batch_size`` requests are in rounds of full width."""
    steps = subject.config.bench.timed_steps
    max_tokens = tokens_needed(subject, batch_size, steps)
    longest = max(len(prompt) for prompt in subject.prompts) + max_tokens
    if longest > subject.config.serving.max_context_len:
        raise ValueError(
            f"bench.timed_steps={steps} needs serving.max_context_len of {longest} or more"
        )
    names = _fill(subject, way, batch_size, max_tokens)
    times = []
    for _ in range(steps):
        start_s = time.perf_counter()
        report = subject.engine.step()
        times.append(time.perf_counter() - start_s)
        assert report.num_rounds == batch_size
    _empty(subject, names)
    return 1e3 * statistics.median(times)


def swap_pauses_ms(subject: Subject, versions: list[DraftWeights]) -> list[float]:
    """Pause of each of ``bench.swaps`` exchanges, one before every step of a running request."""
    engine = subject.engine
    rng = random.Random(0)
    left = subject.config.bench.swaps
    subject.pauses.pauses_s.clear()
    way = Way("draft", speculation=True)
    while left > 0:
        names = _fill(subject, way, 1, subject.config.bench.max_tokens)
        running = True
        while running and left > 0:
            engine.slot.stage(rng.choice(versions))
            running = engine.step().num_ended == 0
            left -= 1
        _empty(subject, names)
    return [1e3 * pause_s for pause_s in subject.pauses.pauses_s]
