"""The study's command line: choose arms, record what they need, run what is missing, report.

Owns words, order and exit status; every number is made elsewhere.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from dvi.bench.report import print_section
from dvi.config.cores import decode_threads
from dvi.config.home import dvi_home
from dvi.decoding.measure import processor_name
from dvi.launch.compose import compose_config
from dvi.launch.request import LaunchRequest
from dvi.modeling.fingerprint import base_fingerprint
from dvi.modeling.resolve import resolve_model_path
from dvi.modeling.threads import set_thread_modes
from dvi.registry import Registry
from dvi.study.arms import Arm, full, quick, small
from dvi.study.record import record
from dvi.study.report import write
from dvi.study.results import ResultFile, source_hash
from dvi.study.run import Kit, Models, config_of, run_arm
from dvi.study.served import judge_served, served_section
from dvi.study.tables import section


def main(words: Sequence[str]) -> int:
    """Run the study; 2 for words that cannot be used, 0 with whatever part was asked for."""
    options = _parse(words)
    try:
        return _served(options) if options.served else _study(options)
    except ValueError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/study.sh", description=__doc__)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--small", action="store_true", help="one arm on 60 requests")
    size.add_argument("--quick", action="store_true", help="objectives, about an hour")
    size.add_argument("--full", action="store_true", help="every question, over night")
    size.add_argument(
        "--served", action="store_true", help="judge the promotions of a server that ran"
    )
    parser.add_argument("--seeds", type=int, help="seeds of each arm (quick: 3, full: 5)")
    parser.add_argument("--only", default="", help="arms whose name has this text")
    parser.add_argument("--minutes", type=float, help="start no arm that would end later")
    parser.add_argument("--out", type=Path, help="output folder (default DVI_HOME/study/SIZE)")
    parser.add_argument(
        "--adapters", type=Path, help="folder of adapters whose live version each arm starts with"
    )
    parser.add_argument("--list", action="store_true", help="print the arms and run nothing")
    parser.add_argument("--report", action="store_true", help="tables of what is there, no runs")
    parser.add_argument("overrides", nargs="*", help="config keys of all arms: key=value")
    return parser.parse_args(words)


def _arms(options: argparse.Namespace) -> tuple[str, list[Arm]]:
    if options.seeds is not None and options.seeds < 1:
        raise ValueError(f"--seeds {options.seeds} must be at least 1")
    if options.small:
        name, arms = "small", small()
    elif options.quick:
        name, arms = "quick", quick(options.seeds or 3)
    else:
        name, arms = "full", full(options.seeds or 5)
    chosen = [arm for arm in arms if options.only in arm.name]
    if not chosen:
        raise ValueError(f"--only {options.only!r} names no arm: see --list")
    return name, chosen


def _served(options: argparse.Namespace) -> int:
    """Not with the words of an arm: nothing is run and nothing is written."""
    others = ("seeds", "only", "minutes", "out", "adapters", "list", "report")
    given = [name for name in others if vars(options)[name]]
    if given:
        raise ValueError(f"--served takes config keys alone, not --{given[0]}")
    config = compose_config(LaunchRequest("study", tuple(options.overrides)))
    set_thread_modes(decode_threads(config.model))
    print_section(served_section(judge_served(config)))
    return 0


def _study(options: argparse.Namespace) -> int:
    size, arms = _arms(options)
    if options.list:
        for arm in arms:
            print(f"{arm.name}: {arm.setting.plan} {' '.join(arm.setting.overrides)}")
        return 0
    config = config_of(options.overrides)
    set_thread_modes(decode_threads(config.model))
    folder = options.out or dvi_home() / "study" / size
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    base = base_fingerprint(resolve_model_path(config.model), 0, 0)
    common = [*options.overrides, *_live_manifest(options.adapters)]
    results = ResultFile(folder / "arms.jsonl", source_hash(base, common))
    done = {result.arm for result in results.read()}
    if not options.report:
        missing = [arm for arm in arms if arm.name not in done]
        _run(missing, options, results, folder)
    found = results.read()
    if not found:
        raise ValueError(f"no arm is done in {folder}")
    shown = section(found)
    about = {
        "command": f"bash scripts/study.sh {' '.join(sys.argv[1:])}",
        "date": time.strftime("%Y-%m-%d"),
        "arms": f"{len(found)} done, {len(arms)} asked for",
        "machine": f"{os.cpu_count()} x {processor_name()}, torch {torch.__version__}, "
        f"python {platform.python_version()}",
    }
    write(shown, about, folder)
    print_section(shown)
    print(f"{folder / 'study.md'}, study.json, study.png")
    return 0


def _live_manifest(adapters: Path | None) -> list[str]:
    """What names the version that arms start with; ValueError where a folder has none."""
    if adapters is None:
        return []
    registry = Registry(adapters, 1)
    version = registry.current() if adapters.is_dir() else 0
    if not version:
        raise ValueError(f"--adapters {adapters}: no version is live there")
    return [repr(registry.manifest(version))]


def _run(
    arms: Sequence[Arm], options: argparse.Namespace, results: ResultFile, folder: Path
) -> None:
    """Record, then arm after arm; each is kept before the next one starts."""
    if not arms:
        return
    clock = time.monotonic
    start_s = clock()
    plans = [arm.setting.plan for arm in arms]
    recordings = record(config_of(options.overrides), plans, folder / "prompts", _told(clock))
    kit = Kit(options.overrides, recordings, Models(), folder / "work", options.adapters)
    longest_s = 0.0
    for place, arm in enumerate(arms):
        spent_s = clock() - start_s
        if options.minutes is not None and spent_s + longest_s > 60 * options.minutes:
            print(f"study: {len(arms) - place} arms are left for another run", file=sys.stderr)
            return
        arm_start_s = clock()
        result = run_arm(arm, kit)
        results.add(result)
        longest_s = max(longest_s, clock() - arm_start_s)
        print(
            f"study: {place + 1} of {len(arms)}: {arm.name}, {clock() - arm_start_s:.0f} s",
            file=sys.stderr,
        )


def _told(clock: Callable[[], float]) -> Callable[[str], None]:
    start_s = clock()

    def told(text: str) -> None:
        print(f"study: {clock() - start_s:.0f} s: {text}", file=sys.stderr)

    return told
