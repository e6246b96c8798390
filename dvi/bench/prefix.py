"""The part `prefix`: requests that begin alike, one after the other, on one engine.

Owns the clock of the first token; the same requests on an engine that reads every prompt whole say
what an answer and alpha must be.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dvi.bench.bench import Bench, EngineShape, Ids, Subject
from dvi.bench.part import Part, Section
from dvi.bench.prompts import narrow_mix
from dvi.bench.stats import spread
from dvi.bench.ways import Way
from dvi.decoding.batch import Result, join_deltas
from dvi.types import Delta

log = logging.getLogger(__name__)

NUM_REQUESTS = 20
PREFIX_LEN = 500  # tokens
OWN_LEN = 20  # tokens of a prompt after the prefix
DRAFTED = Way("draft", speculation=True)


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer and the seconds from its submission to its first tokens."""

    result: Result
    first_token_s: float


def prompts_with_prefix(pool: list[Ids], turn: int) -> list[Ids]:
    """``NUM_REQUESTS`` prompts that share ``PREFIX_LEN`` tokens; another prefix each turn."""
    text = [token for prompt in pool[turn:] + pool[:turn] for token in prompt]
    assert len(text) >= PREFIX_LEN
    own = [pool[(turn + n) % len(pool)][-OWN_LEN:] for n in range(NUM_REQUESTS)]
    # The number keeps every prompt's own part distinct where the pool is short.
    return [(*text[:PREFIX_LEN], text[n], *tail) for n, tail in enumerate(own)]


def timed_answer(subject: Subject, prompt: Ids, max_tokens: int) -> Timed:
    """Decode one request alone."""
    deltas: list[Delta] = []
    request = subject.request(prompt, DRAFTED.endless(max_tokens, 0), speculation=True)
    start_s = time.perf_counter()
    subject.engine.submit(request, deltas.append)
    while not deltas:
        subject.engine.step()
    first_token_s = time.perf_counter() - start_s
    while subject.engine.step().worked:
        pass
    return Timed(join_deltas(deltas), first_token_s)


def alpha(answers: Sequence[Timed]) -> float | None:
    """accepted / judged over all of them."""
    judged = sum(one.result.counts.judged for one in answers)
    accepted = sum(one.result.counts.accepted for one in answers)
    return accepted / judged if judged else None


def measure(bench: Bench) -> Section:
    """The ratio of each turn; whole prompts are read for the first turn only."""
    kind, config = bench.config.drafter.kind, bench.config
    needed = PREFIX_LEN + 1 + OWN_LEN + config.bench.max_tokens
    if needed > config.serving.max_context_len:
        raise ValueError(f"the part prefix needs serving.max_context_len of {needed} or more")
    pool = narrow_mix(bench.loaded().tokenizer, NUM_REQUESTS)
    shape = EngineShape(kind, 2, adaptive=False, prefix_scope="global")
    turns: list[list[Timed]] = []
    with bench.engine(shape) as subject:
        timed_answer(subject, pool[0], config.bench.max_tokens)  # warms up
        for turn in range(config.bench.repeats):
            log.info("prefix, turn %d of %d", turn + 1, config.bench.repeats)
            prompts = prompts_with_prefix(pool, turn + 1)
            turns.append([timed_answer(subject, one, config.bench.max_tokens) for one in prompts])
    with bench.engine(EngineShape(kind, 2, adaptive=False)) as subject:
        timed_answer(subject, pool[0], config.bench.max_tokens)
        prompts = prompts_with_prefix(pool, 1)
        whole = [timed_answer(subject, one, config.bench.max_tokens) for one in prompts]
    return _section(turns, whole, must_equal=config.decoding.deterministic)


def _section(turns: list[list[Timed]], whole: list[Timed], *, must_equal: bool) -> Section:
    later = [statistics.median(one.first_token_s for one in turn[1:]) for turn in turns]
    ratio = spread([t / turn[0].first_token_s for t, turn in zip(later, turns, strict=True)])
    warm = turns[0]
    num_equal = sum(
        one.result.token_ids == other.result.token_ids
        for one, other in zip(warm, whole, strict=True)
    )
    data = {
        "requests": NUM_REQUESTS,
        "prefix_tokens": PREFIX_LEN,
        "first_ms": 1e3 * statistics.median(turn[0].first_token_s for turn in turns),
        "later_ms": 1e3 * statistics.median(later),
        "later_over_first": ratio.median,
        "alpha": alpha(warm),
        "alpha_whole_prompts": alpha(whole),
        "equal_answers": num_equal,
    }
    shown = [f"{value:.3f}" if value is not None else "-" for value in (alpha(warm), alpha(whole))]
    note = (
        f"{NUM_REQUESTS} requests that share {PREFIX_LEN} tokens: time to first token "
        f"{data['first_ms']:.0f} ms, from the second on {data['later_ms']:.0f} ms, ratio "
        f"{ratio.shown(2)}; alpha {shown[0]}, reading whole prompts {shown[1]}; "
        f"{num_equal} of {NUM_REQUESTS} answers equal"
    )
    differs = must_equal and num_equal < NUM_REQUESTS
    return Section(data, notes=[note], failure="prefix: answers differ" if differs else None)


PREFIX = Part("prefix", "time to first token of requests that begin alike", measure)
