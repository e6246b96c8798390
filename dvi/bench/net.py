"""The part `net`: whether training pays on the cores that it shares with serving.

Owns the turns of two servers that differ in the trainer alone, and where one overtakes the other.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence

import httpx

from dvi.bench.bench import Bench
from dvi.bench.live import speed
from dvi.bench.part import Grid, Json, Lines, Part, Section
from dvi.demo.answers import Answer
from dvi.demo.client import Pass, metric, run_pass, tell_trainer, wait_for_trainer
from dvi.demo.compare import compare
from dvi.demo.server import Server, forwarded_overrides
from dvi.traffic.stream import DOMAINS, Prompt, make_stream

log = logging.getLogger(__name__)

TURN = 10  # requests of one domain that a server answers in a row

Turn = tuple[list[Answer], list[Answer]]  # with and without training


def measure(bench: Bench) -> Section:
    """The whole stream by both servers, in turns; the trainer rests in the other one's.

    Who begins changes with each turn: a slow moment of the machine hits both alike. The state of
    the server that learns stays, for a look at what it promoted.
    """
    config = bench.config.bench
    stream = make_stream(config.warm_requests + config.num_prompts, seed=0)
    how = Pass(speculation=True, log=True, in_flight=1, max_tokens=config.max_tokens)
    overrides = forwarded_overrides(bench.config)
    turns: list[Turn] = []
    with (
        Server([*overrides, "trainer.enabled=false"], bench.run_dir / "net-still") as still,
        Server(overrides, bench.run_dir / "net") as learns,
    ):
        wait_for_trainer(learns.url)
        tell_trainer(learns.url, "pause")
        for place, prompts in enumerate(in_turns(stream)):
            if bench.stop.is_asked():
                break
            log.info("net: %s, request %d", prompts[0].domain, prompts[0].index + 1)
            before = [] if place % 2 else run_pass(still.url, prompts, how)
            tell_trainer(learns.url, "resume")
            with_training = run_pass(learns.url, prompts, how)
            tell_trainer(learns.url, "pause")
            turns.append((with_training, before or run_pass(still.url, prompts, how)))
        metrics = httpx.get(f"{learns.url}/metrics", timeout=10.0).text
    return section(turns, metrics)


def in_turns(stream: Sequence[Prompt]) -> list[list[Prompt]]:
    """The stream in runs of at most TURN prompts of one domain."""
    turns: list[list[Prompt]] = []
    for _, group in itertools.groupby(stream, key=lambda prompt: prompt.domain):
        prompts = list(group)
        turns += [prompts[first : first + TURN] for first in range(0, len(prompts), TURN)]
    return turns


def _seconds(answers: Sequence[Answer]) -> float:
    return sum(one.finished_s - one.started_s for one in answers)


def break_even(saved_s: Sequence[float]) -> int | None:
    """Turns until the sum of what each saved stays above zero; None where it does not."""
    totals = list(itertools.accumulate(saved_s))
    below = [place for place, total in enumerate(totals) if total <= 0]
    first = below[-1] + 1 if below else 0
    return first + 1 if first < len(totals) else None


def section(turns: Sequence[Turn], metrics: str) -> Section:
    """Speed with training over speed without, by domain and in all; ValueError without turns."""
    if not turns:
        raise ValueError("net: stopped before any request was answered both ways")
    with_training, without = ([one for turn in turns for one in turn[side]] for side in (0, 1))
    saved_s = [_seconds(off) - _seconds(on) for on, off in turns]
    even = break_even(saved_s)
    num_even = None if even is None else sum(len(on) for on, _ in turns[:even])
    same = compare(with_training, without)
    ratios = {domain: _ratio(turns, domain) for domain in DOMAINS}
    found = {domain: ratio for domain, ratio in ratios.items() if ratio is not None}
    data: Json = {
        "over_untrained": speed(with_training) / speed(without),
        "over_untrained_by_group": found,
        "saved_s": saved_s,
        "break_even_requests": num_even,
        "requests": len(with_training),
        "compared": same.compared,
        "identical": same.identical,
        "trainer_steps": metric(metrics, "dvi_trainer_steps_total"),
        "trainer_cpu_s": metric(metrics, "dvi_trainer_cpu_seconds_total"),
        "payback_ratio": metric(metrics, "dvi_trainer_payback_ratio"),
    }
    grid = Grid(
        "the same server with training over without, net: tokens/s",
        ("domain", "ratio"),
        [(name, f"{ratio:.2f}") for name, ratio in found.items()],
    )
    ends = itertools.accumulate(len(on) for on, _ in turns)
    points = [(float(x), y) for x, y in zip(ends, itertools.accumulate(saved_s), strict=True)]
    panel = Lines("saved by training, net", "requests", "s", {"saved": points})
    said = "no break-even" if num_even is None else f"break-even after {num_even} requests"
    notes = [
        f"net: {data['over_untrained']:.2f}x the same server without training over "
        f"{len(with_training)} requests ({data['trainer_steps']:.0f} steps, "
        f"{data['trainer_cpu_s']:.0f} s of CPU); {said}; the trainer's own estimate at the "
        f"end: {data['payback_ratio']:.1f} of its time saved within trainer.payback_s",
        f"net: {same.identical} of {same.compared} answers identical with and without training",
    ]
    return Section(data, [grid], [panel], notes)


def _ratio(turns: Sequence[Turn], domain: str) -> float | None:
    own = [turn for turn in turns if turn[0][0].domain == domain]
    if not own:
        return None
    on, off = ([one for turn in own for one in turn[side]] for side in (0, 1))
    return speed(on) / speed(off)


NET = Part("net", "the narrow stream over HTTP with training and without, in turns", measure, False)
