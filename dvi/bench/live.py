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

import httpx

from dvi.bench.bench import Bench
from dvi.bench.part import Bars, Grid, Json, Part, Section
from dvi.bench.stats import Spread, spread
from dvi.demo.answers import Answer
from dvi.demo.client import Pass, run_pass
from dvi.demo.compare import compare
from dvi.demo.server import Server, ending_in_order, forwarded_overrides
from dvi.traffic.stream import DOMAINS, Prompt, make_stream

log = logging.getLogger(__name__)


def measure(bench: Bench) -> Section:
    """Plain before and after the stream, by a server without trainer; auto with one in between.

    The plain passes bracket the learning one, so that a slow drift of the machine is seen. Their
    server waits idle meanwhile.
    """
    config = bench.config.bench
    stream = make_stream(config.warm_requests + config.num_prompts, seed=0)
    timed = [prompt for prompt in stream if _place(prompt, stream) >= config.warm_requests]
    plain = Pass(speculation=False, log=False, in_flight=1, max_tokens=config.max_tokens)
    learn = dataclasses.replace(plain, speculation=True, log=True)
    overrides = forwarded_overrides(bench.config)
    still = Server([*overrides, "trainer.enabled=false"], bench.run_dir / "live-plain")
    with ending_in_order(), still:
        log.info("live: plain decoding")
        before = run_pass(still.url, timed, plain, _silent)
        with Server(overrides, bench.run_dir / "live") as server:
            log.info("live: %d requests while the trainer learns", len(stream))
            served = run_pass(server.url, stream, learn, _silent)
            metrics = httpx.get(f"{server.url}/metrics", timeout=10.0).text
        log.info("live: plain decoding again")
        after = run_pass(still.url, timed, plain, _silent)
    for name in ("live", "live-plain"):  # throw-away state; the logs stay
        shutil.rmtree(bench.run_dir / name / "state", ignore_errors=True)
    wanted = {prompt.index for prompt in timed}
    return section([one for one in served if one.index in wanted], (before, after), metrics)


def _place(prompt: Prompt, stream: Sequence[Prompt]) -> int:
    return prompt.index % (len(stream) // len(DOMAINS))


def _silent(answer: Answer) -> None:
    """Nothing to show."""


def section(
    served: Sequence[Answer], plain: tuple[Sequence[Answer], Sequence[Answer]], metrics: str
) -> Section:
    """Ratios by domain against both plain passes, and what the server counted."""
    found = {domain: _ratios(domain, served, plain) for domain in DOMAINS}
    mean = statistics.fmean(one.median for one in found.values())
    same = compare(served, plain[0])
    swaps, p99_ms = swap_pauses(metrics)
    data: Json = {
        "over_plain": mean,
        "over_plain_by_group": {name: dataclasses.asdict(one) for name, one in found.items()},
        "compared": same.compared,
        "identical": same.identical,
        "swaps": swaps,
        "swap_pause_p99_at_most_ms": p99_ms,
        "trainer_steps": counter(metrics, "dvi_trainer_steps_total"),
        "trainer_cpu_s": counter(metrics, "dvi_trainer_cpu_seconds_total"),
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
        f"live: {same.identical} of {same.compared} answers identical to plain decoding",
    ]
    bars = Bars(
        "live, trainer running",
        "tokens/s over plain",
        list(DOMAINS),
        {"auto": [one.median for one in found.values()]},
    )
    return Section(data, [grid], [bars], notes)


def _ratios(
    domain: str, served: Sequence[Answer], plain: tuple[Sequence[Answer], Sequence[Answer]]
) -> Spread:
    own = speed(served, domain)
    return spread([own / speed(one, domain) for one in plain])


def speed(answers: Sequence[Answer], domain: str) -> float:
    """Tokens a second of one domain's answers, one at a time."""
    own = [one for one in answers if one.domain == domain]
    return sum(len(one.token_ids) for one in own) / sum(
        one.finished_s - one.started_s for one in own
    )


def counter(metrics: str, name: str) -> float:
    """The value of a metric without labels; 0 where it is absent."""
    found = re.search(rf"^{name} (\S+)$", metrics, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


def swap_pauses(metrics: str) -> tuple[float, float | None]:
    """Number of swaps, and the bucket that holds the 99th percentile of their pauses, in ms."""
    pattern = r'^dvi_swap_pause_seconds_bucket\{le="([^"]+)"\} (\S+)$'
    buckets = [(float(le), float(n)) for le, n in re.findall(pattern, metrics, re.MULTILINE)]
    count = buckets[-1][1] if buckets else 0.0
    if not count:
        return 0.0, None
    return count, 1e3 * next(le for le, below in buckets if below >= 0.99 * count)


LIVE = Part("live", "narrow traffic over HTTP, the trainer on the same cores", measure, False)
