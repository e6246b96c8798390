"""The part `live`: narrow traffic over HTTP while the trainer learns on the same cores.

Owns the passes and what is read from /metrics; the server is `dvi serve` as the demo starts it.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import shutil
import statistics
from collections.abc import Sequence
from contextlib import suppress

import httpx

from dvi.bench.bench import Bench
from dvi.bench.part import Bars, Grid, Json, Part, Section
from dvi.bench.stats import spread
from dvi.bench.stop import Stop
from dvi.demo.answers import Answer
from dvi.demo.client import Pass, metric, run_pass, wait_for_trainer
from dvi.demo.compare import compare
from dvi.demo.server import Server, forwarded_overrides
from dvi.traffic.stream import DOMAINS, Prompt, make_stream

log = logging.getLogger(__name__)


def measure(bench: Bench) -> Section:
    """The whole stream by a server that learns; what is timed of it plainly as well.

    Half of that is decoded plainly before and half after, by a server without trainer that waits
    idle meanwhile: a slow drift of the machine is seen.
    """
    config = bench.config.bench
    stream = make_stream(config.warm_requests + config.num_prompts, seed=0)
    timed = [prompt for prompt in stream if _place(prompt, stream) >= config.warm_requests]
    plain = Pass(speculation=False, log=False, in_flight=1, max_tokens=config.max_tokens)
    learn = dataclasses.replace(plain, speculation=True, log=True)
    overrides = forwarded_overrides(bench.config)
    still = Server([*overrides, "trainer.enabled=false"], bench.run_dir / "live-plain")
    with still:
        log.info("live: plain decoding")
        before = _answers(bench.stop, still.url, timed[::2], plain)
        with Server(overrides, bench.run_dir / "live") as server:
            wait_for_trainer(server.url)
            log.info("live: %d requests while the trainer learns", len(stream))
            served = _answers(bench.stop, server.url, stream, learn)
            metrics = httpx.get(f"{server.url}/metrics", timeout=10.0).text
        log.info("live: plain decoding again")
        after = _answers(bench.stop, still.url, timed[1::2], plain)
    for name in ("live", "live-plain"):  # throw-away state; the logs stay
        shutil.rmtree(bench.run_dir / name / "state", ignore_errors=True)
    return section(served, (before, after), metrics)


def _place(prompt: Prompt, stream: Sequence[Prompt]) -> int:
    return prompt.index % (len(stream) // len(DOMAINS))


class _Stopped(Exception):
    """No further request is to be sent."""


def _answers(stop: Stop, url: str, prompts: Sequence[Prompt], how: Pass) -> list[Answer]:
    """Answers to all prompts, or to the first ones where the bench is stopped."""
    found: list[Answer] = []

    def tell(answer: Answer) -> None:
        found.append(answer)
        if stop.is_asked():
            raise _Stopped

    with suppress(_Stopped):
        run_pass(url, prompts, how, tell)
    return found


def section(
    served: Sequence[Answer], plain: tuple[Sequence[Answer], Sequence[Answer]], metrics: str
) -> Section:
    """Ratios by domain against each plain pass, on the requests of both; what the server counted.

    A domain that nobody reached before the bench was stopped is left out. Raises ValueError where
    that is all of them.
    """
    pairs = [(common(served, one), common(one, served)) for one in plain]
    by_domain = {domain: _ratios(domain, pairs) for domain in DOMAINS}
    found = {domain: spread(values) for domain, values in by_domain.items() if values}
    if not found:
        raise ValueError("live: stopped before any request was answered both ways")
    mean = statistics.fmean(one.median for one in found.values())
    same = [compare(*pair) for pair in pairs]
    compared, identical = sum(one.compared for one in same), sum(one.identical for one in same)
    swaps, p99_ms = swap_pauses(metrics)
    data: Json = {
        "over_plain": mean,
        "over_plain_by_group": {name: dataclasses.asdict(one) for name, one in found.items()},
        "compared": compared,
        "identical": identical,
        "swaps": swaps,
        "swap_pause_p99_at_most_ms": p99_ms,
        "trainer_steps": metric(metrics, "dvi_trainer_steps_total"),
        "trainer_cpu_s": metric(metrics, "dvi_trainer_cpu_seconds_total"),
    }
    grid = Grid(
        "live server, trainer on the same cores: tokens/s over plain",
        ("domain", "vs plain (before-after)"),
        [(name, one.shown(2)) for name, one in found.items()],
    )
    pause = "no swap" if p99_ms is None else f"{swaps:.0f} swaps, pause p99 at most {p99_ms:g} ms"
    notes = [
        f"live: {mean:.2f}x plain, net of training ({data['trainer_steps']:.0f} steps, "
        f"{data['trainer_cpu_s']:.0f} s of CPU); {pause}",
        f"live: {identical} of {compared} answers identical to plain decoding",
    ]
    bars = Bars(
        "live, trainer running",
        "tokens/s over plain",
        list(found),
        {"auto": [one.median for one in found.values()]},
    )
    return Section(data, [grid], [bars], notes)


def common(answers: Sequence[Answer], others: Sequence[Answer]) -> list[Answer]:
    """Those of ``answers`` whose prompt is among ``others``."""
    wanted = {one.index for one in others}
    return [one for one in answers if one.index in wanted]


def _ratios(domain: str, pairs: Sequence[tuple[Sequence[Answer], Sequence[Answer]]]) -> list[float]:
    """Speed over speed of each pair that has answers of this domain."""
    own = [[[one for one in answers if one.domain == domain] for answers in pair] for pair in pairs]
    return [speed(served) / speed(plain) for served, plain in own if served]


def speed(answers: Sequence[Answer]) -> float:
    """Tokens a second of answers that came one at a time."""
    return sum(len(one.token_ids) for one in answers) / sum(
        one.finished_s - one.started_s for one in answers
    )


def swap_pauses(metrics: str) -> tuple[float, float | None]:
    """Number of swaps, and the bucket that holds the 99th percentile of their pauses, in ms."""
    pattern = r'^dvi_swap_pause_seconds_bucket\{le="([^"]+)"\} (\S+)$'
    buckets = [(float(le), float(n)) for le, n in re.findall(pattern, metrics, re.MULTILINE)]
    count = buckets[-1][1] if buckets else 0.0
    if not count:
        return 0.0, None
    return count, 1e3 * next(le for le, below in buckets if below >= 0.99 * count)


LIVE = Part("live", "narrow traffic over HTTP, the trainer on the same cores", measure, False)
