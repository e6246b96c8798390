"""The part `spec`: a user's prompts (Spec-Bench or any JSONL), cold, by category.

Owns the choice of prompts; every measurement starts with empty memories.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from dvi.bench.bench import Bench
from dvi.bench.cells import CELLS, cells_section, chosen_cells, run_cell
from dvi.bench.check import own_bound
from dvi.bench.part import Part, Section
from dvi.bench.prompts import read_items
from dvi.bench.runners import engine_runners

log = logging.getLogger(__name__)


def measure(bench: Bench) -> Section:
    """Plain decoding and the configured kind at both batch sizes; each source alone where greedy
    and single."""
    config = bench.config
    if config.bench.prompts is None:
        return Section({}, notes=["spec: give bench.prompts=FILE (Spec-Bench or any JSONL)"])
    path = Path(config.bench.prompts)
    most = config.serving.max_context_len - config.bench.max_tokens
    items = read_items(path, bench.loaded().tokenizer, config.bench.num_prompts)
    fitting = [item for item in items if len(item.ids) <= most]
    if not fitting:
        raise ValueError(f"bench.prompts: no prompt of {path} has {most} tokens or fewer")
    bound = own_bound(bench.loaded().target)
    results = []
    for cell in chosen_cells(bench, CELLS[:3]):
        log.info("%s, %s", path.name, cell.name)
        configured = bench.drafts()[-1:]
        kinds = bench.drafts() if cell == CELLS[0] else configured
        if config.bench.adapters is None:  # a learned draft alone, untrained, says nothing
            learned = config.drafter.learned
            kinds = [kind for kind in kinds if kind != learned or kind in configured]
        with engine_runners(bench, kinds, cell.batch_size, fitting) as runners:
            checked = [one.name for one in runners[1:]]
            results.append(run_cell(bench, runners, fitting, cell, checked=checked, bound=bound))
    section = cells_section(path.stem, results)
    if len(fitting) < len(items):
        note = f"{len(items) - len(fitting)} prompts above {most} tokens were left out"
        section = dataclasses.replace(section, notes=[note, *section.notes])
    return section


SPEC = Part("spec", "the prompts of bench.prompts, cold, by category", measure)
