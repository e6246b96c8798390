"""The order of a demo run: serve, stream, plain, sampled, compare, report.

Owns the passes and the exit status; every part knows only its own work.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dvi.config import DviConfig
from dvi.config.home import demo_dir
from dvi.demo.answers import Answer
from dvi.demo.board import Board
from dvi.demo.client import Pass, RequestFailed, run_pass, tell_trainer, wait_for_trainer
from dvi.demo.compare import Comparison, compare
from dvi.demo.page import identity_line, page, phase_line, speed_line, tool_line
from dvi.demo.picture import save_png, svg
from dvi.demo.report import Checked, Passes, all_identical, make_report
from dvi.demo.server import Server, ServerFailed, ending_in_order, forwarded_overrides
from dvi.demo.timing import Laps
from dvi.demo.toolcalls import FIELDS as TOOL_FIELDS
from dvi.demo.toolcalls import write_template
from dvi.launch.request import quoted
from dvi.traffic.stream import Prompt, make_stream
from dvi.traffic.tools import make_tool_stream

log = logging.getLogger(__name__)

DOMAINS = ("sql", "support", "json")
CHECK_IN_FLIGHT = 32  # of the passes that only compare: answers do not depend on neighbours
MAX_CONTEXT_LEN = 480  # no request is longer; 24 MB of keys and values a row for SmolLM2-135M
SPEED_SAMPLE = 3  # prompts of each domain, from its last ten
TEMPERATURE = 0.8  # of the sampled pass
FIRST_SEED = 1_000  # of the sampled pass; any will do


@dataclass(frozen=True, slots=True)
class Run:
    """What all passes of a run share."""

    config: DviConfig
    prompts: Sequence[Prompt]
    laps: Laps
    shows_tools: bool = False  # the model can be shown tools, and some calls are wanted

    def ways(self, *, speculation: bool, temperature: float = 0.0) -> Pass:
        """How a checked pass is sent; each is a user, and users share no computed prompts.

        All are logged, since only prompts of logged requests are shared; learning ends with the
        stream.
        """
        demo = self.config.demo
        is_stream = speculation and temperature == 0.0
        return Pass(
            user=f"speculation {speculation}, temperature {temperature}",
            speculation=speculation,
            log=True,
            in_flight=demo.streams if is_stream else CHECK_IN_FLIGHT,
            max_tokens=demo.max_tokens,
            temperature=temperature,
            first_seed=FIRST_SEED,
        )


def _of_each_domain(prompts: Sequence[Prompt], count: int, *, from_end: bool) -> list[Prompt]:
    chosen: list[Prompt] = []
    for domain in DOMAINS:
        own = [prompt for prompt in prompts if prompt.domain == domain]
        chosen += own[len(own) - count :] if from_end else own[:count]
    return chosen


def _speed_sample(run: Run, url: str) -> list[Answer]:
    """Plain decoding with as many in flight as the stream had, and prompts shared as there.

    The first prompts warm it up: of each domain one is computed whole.
    """
    how = replace(run.ways(speculation=False), in_flight=run.config.demo.streams)
    run_pass(url, _of_each_domain(run.prompts, 1, from_end=False), how)
    return run_pass(url, _of_each_domain(run.prompts, SPEED_SAMPLE, from_end=True), how)


def _all_passes(run: Run, url: str) -> Passes:
    demo, laps = run.config.demo, run.laps
    wait_for_trainer(url)
    laps.lap("start")
    with Board("stream") as board:
        served = run_pass(url, run.prompts, run.ways(speculation=True), board.tell)
    tell_trainer(url, "pause")
    laps.lap("stream")
    log.info("plain decoding, %d in flight, for the speed to compare with", demo.streams)
    sample = _speed_sample(run, url)
    laps.lap("plain speed")
    log.info("the same %d prompts by plain decoding", len(run.prompts))
    plain = run_pass(url, run.prompts, run.ways(speculation=False))
    laps.lap("plain check")
    few = -(-demo.sampled_prompts // len(DOMAINS))
    drawn = _of_each_domain(run.prompts, few, from_end=False)[: demo.sampled_prompts]
    log.info("%d sampled requests, with and without speculation", len(drawn))
    sampled, sampled_plain = _sampled_pair(run, url, drawn) if drawn else ([], [])
    laps.lap("sampled")
    calls, calls_plain = _tool_pair(run, url) if run.shows_tools else ([], [])
    laps.lap("tools")
    return Passes(served, plain, sampled, sampled_plain, sample, (), calls, calls_plain)


def _tool_pair(run: Run, url: str) -> tuple[list[Answer], list[Answer]]:
    """With and without speculation, one after the other, since their speeds are compared.

    None where the server refuses them, as where functions and question do not fit its context.
    """
    prompts = make_tool_stream(run.config.demo.tool_prompts, run.config.demo.seed)
    log.info("%d tool calls, with and without speculation", len(prompts))
    served, plain = (
        replace(run.ways(speculation=one), in_flight=run.config.demo.streams, fields=TOOL_FIELDS)
        for one in (True, False)
    )
    try:
        return run_pass(url, prompts, served), run_pass(url, prompts, plain)
    except RequestFailed as error:
        log.warning("no tool calls: %s", error)
        return [], []


def _sampled_pair(run: Run, url: str, drawn: Sequence[Prompt]) -> tuple[list[Answer], list[Answer]]:
    """With and without speculation, side by side: a step costs little more for more rows."""
    ways = [run.ways(speculation=one, temperature=TEMPERATURE) for one in (True, False)]
    with ThreadPoolExecutor(len(ways)) as pool:
        served, plain = pool.map(lambda how: run_pass(url, drawn, how), ways)
    return served, plain


def server_overrides(config: DviConfig) -> list[str]:
    """Fixed K and no controller, so that alpha is that of the draft alone.

    No canary's trials: half of a domain's forty requests would pass before its versions are heard.
    Computed prompts are shared within a pass only: what is compared was computed apart. The stream
    leaves no core idle and is short: the trainer takes more of one than it does elsewhere.
    """
    fixed = ["decoding.adaptive=false", f"decoding.deterministic={config.demo.deterministic}"]
    sizes = [
        f"serving.max_batch_size={CHECK_IN_FLIGHT}",
        f"serving.max_context_len={MAX_CONTEXT_LEN}",
        "drift.canary_share=0",
        "decoding.prefix_scope=user",
        f"trainer.priority={'low' if config.drafter.kind == 'auto' else 'normal'}",
    ]
    return [*sizes, *forwarded_overrides(config), *fixed]


def _control(run: Run, folder: Path) -> list[Answer]:
    log.info("the same stream with the trainer off")
    overrides = [*server_overrides(run.config), "trainer.enabled=false"]
    with Server(overrides, folder) as server, Board("control") as board:
        answers = run_pass(server.url, run.prompts, run.ways(speculation=True), board.tell)
    run.laps.lap("control")
    return answers


def _with_tools(run: Run, folder: Path) -> tuple[Run, list[str]]:
    """The run, and what the server needs to know, where tools can be shown and are wanted."""
    path = folder / "tools.jinja"
    if not run.config.demo.tool_prompts or not write_template(run.config, path):
        return run, []
    words = [f"model.chat_template={quoted(str(path))}"] if path.exists() else []
    return replace(run, shows_tools=True), words


def _serve_stream(run: Run, folder: Path) -> Passes:
    """All passes on a server of our own; the fast mode where the deterministic one is refused."""
    run, words = _with_tools(run, folder)
    try:
        with Server([*server_overrides(run.config), *words], folder) as server:
            return _all_passes(run, server.url)
    except ServerFailed as error:
        if not run.config.demo.deterministic or "deterministic" not in str(error):
            raise
        log.warning("%s: going on in the fast mode", error)
    run.config.demo.deterministic = False
    with Server([*server_overrides(run.config), *words], folder / "fast") as server:
        return _all_passes(run, server.url)


def _check(config: DviConfig, comparison: Comparison, temperature: float) -> Checked:
    """With margins, whose module imports the model's code: for divergences only."""
    if not comparison.divergences:
        return Checked(comparison, ())
    from dvi.demo.margin import margins

    return Checked(comparison, margins(config, comparison.divergences, temperature))


def _about(run: Run, passes: Passes) -> dict[str, Any]:
    config = run.config
    return {
        "model": config.model.path,
        "drafter": config.drafter.kind,
        "mode": "deterministic" if config.demo.deterministic else "fast",
        "system_fingerprint": passes.served[0].fingerprint,
        "draft_len": config.decoding.draft_len,
        "streams": config.demo.streams,
        "seed": config.demo.seed,
        "temperature": TEMPERATURE,
        "seconds": round(run.laps.total, 1),
        "phase_seconds": {name: round(value, 1) for name, value in run.laps.seconds.items()},
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _write(report: Mapping[str, Any]) -> Path:
    folder = demo_dir()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(report, svg(report)), encoding="utf-8")
    save_png(report, str(folder / "report.png"))
    return folder


def _print_summary(report: Mapping[str, Any], folder: Path) -> None:
    for row in report["domains"]:
        print(
            f"{row['domain']}: alpha {row['alpha_first_ten'] or 0:.2f} in the first ten requests, "
            f"{row['alpha_last_ten'] or 0:.2f} in the last ten; tokens per round "
            f"{row['tokens_per_round_first_ten']:.2f}, {row['tokens_per_round_last_ten']:.2f}"
        )
    print(speed_line(report["speed"]))
    if report["tools"] is not None:
        print(tool_line(report["tools"]))
    for name, row in report["identity"].items():
        print(identity_line(name, row))
    print(phase_line(report))
    print(f"mode: {report['mode']}; picture: {folder / 'report.html'}")


def run_demo(config: DviConfig, run_dir: Path, *, as_json: bool) -> int:
    """Run it all; 1 if an answer differed in deterministic mode, else 0.

    Raises ServerFailed and RequestFailed (RuntimeError) with one line.
    """
    prompts = make_stream(config.demo.prompts_per_domain, config.demo.seed, DOMAINS)
    run = Run(config, prompts, Laps())
    try:
        with ending_in_order():
            passes = _serve_stream(run, run_dir / "server")
            run.laps.lap("stop")
            control = _control(run, run_dir / "control") if config.demo.control else []
    finally:
        for name in ("server", "control"):  # throw-away state; the logs stay
            shutil.rmtree(run_dir / name / "state", ignore_errors=True)
    passes = dataclasses.replace(passes, control=control)
    checked = {
        "greedy": _check(config, compare(passes.served, passes.plain), 0.0),
        "sampled": _check(config, compare(passes.sampled, passes.sampled_plain), TEMPERATURE),
    }
    if passes.tools:
        checked["tools"] = _check(config, compare(passes.tools, passes.tools_plain), 0.0)
    run.laps.lap("compare")
    report = make_report(_about(run, passes), passes, checked)
    folder = _write(report)
    if as_json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        _print_summary(report, folder)
    return 1 if config.demo.deterministic and not all_identical(report) else 0
