"""The order of a bench: parts in turn, then the report.

Owns what is written about the run as a whole; does not know what a part measures.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

from dvi.bench.bench import Bench
from dvi.bench.part import Section
from dvi.bench.parts import chosen_parts
from dvi.bench.report import print_section, write_report
from dvi.config import DviConfig
from dvi.config.cores import decode_threads
from dvi.config.home import bench_dir
from dvi.decoding.measure import processor_name
from dvi.modeling.threads import set_thread_modes

log = logging.getLogger(__name__)


def _about(config: DviConfig, seconds: float) -> dict[str, Any]:
    return {
        "model": config.model.path,
        "dtype": config.model.dtype,
        "quantization": config.model.quantization,
        "drafter": config.drafter.kind,
        "adapters": config.bench.adapters,
        "deterministic": config.decoding.deterministic,
        "verification": config.decoding.verification,
        "num_threads": torch.get_num_threads(),
        "processor": f"{os.cpu_count()} x {processor_name()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seconds": round(seconds, 1),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def run_bench(config: DviConfig, run_dir: Path, *, as_json: bool) -> int:
    """Run the chosen parts; 1 if answers differed that had to be equal, else 0.

    Raises ValueError with one line for what cannot be measured.
    """
    set_thread_modes(decode_threads(config.model))
    start_s = time.monotonic()
    sections: dict[str, Section] = {}
    with Bench(config, run_dir) as bench, bench.stop.on_signals():
        for part in chosen_parts(config.bench.parts):
            if bench.stop.is_asked():
                break
            log.info("%s: %s", part.name, part.meaning)
            sections[part.name] = part.measure(bench)
            if not as_json:
                print_section(sections[part.name])
    report = {
        **_about(config, time.monotonic() - start_s),
        **{name: section.data for name, section in sections.items()},
    }
    write_report(report, sections, run_dir)
    bench_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in ("bench.json", "bench.png"):
        shutil.copyfile(run_dir / name, bench_dir() / name)
    if as_json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        print(f"{report['seconds']} s; {bench_dir() / 'bench.json'}, {bench_dir() / 'bench.png'}")
    return 1 if any(section.failure for section in sections.values()) else 0
