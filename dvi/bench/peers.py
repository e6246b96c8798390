"""The part `peers`: Hugging Face, vLLM where it is installed, our plain decoding and our draft.

Owns the peers as runners; all decode the same prompts in turn, cold, tokens counted by ids.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dvi.bench.bench import Bench, Ids
from dvi.bench.cells import CELLS, Cell, cells_section, chosen_cells, run_cell
from dvi.bench.part import Part, Section
from dvi.bench.prompts import Item, narrow_items, read_items
from dvi.bench.race import Answer, How, Runner
from dvi.bench.runners import engine_runners
from dvi.bench.vllm_peer import open_vllm
from dvi.decoding.gap import near_tie_bound
from dvi.decoding.stats import Phase
from dvi.modeling.peer import HuggingFacePeer

HF_PLAIN, HF_LOOKUP = "hf generate", "hf prompt lookup"


@dataclass(frozen=True, slots=True)
class HfRunner:
    """`generate` on so many prompts at once."""

    name: str
    peer: HuggingFacePeer
    batch_size: int
    lookup: bool = False  # with proposals from the prompt's own text

    def run(self, prompts: Sequence[Ids], how: How) -> list[Answer]:
        """See Runner; the next batch begins when the longest answer of this one ends."""
        answers: list[Answer] = []
        start_s = time.perf_counter()
        for first in range(0, len(prompts), self.batch_size):
            waited_s = time.perf_counter() - start_s
            batch = prompts[first : first + self.batch_size]
            found = self.peer.generate(batch, how.max_tokens, how.temperature, lookup=self.lookup)
            answers += [Answer(one.token_ids, waited_s + one.first_token_s) for one in found]
        return answers

    def phase_s(self) -> Mapping[Phase, float]:
        """Not measured."""
        return {}


def _items(bench: Bench) -> list[Item]:
    config = bench.config.bench
    tokenizer = bench.loaded().tokenizer
    count = max(1, config.num_prompts // 2)  # peers are slow, and their ratios vary little
    if config.prompts is None:
        return narrow_items(tokenizer, 0, count)
    return read_items(Path(config.prompts), tokenizer, count)


def measure(bench: Bench) -> Section:
    """Greedy, one prompt at a time and eight at once: sampled, the peers would draw other noise and
    decode other texts."""
    loaded = bench.loaded()
    items = _items(bench)
    like = loaded.target.dtype, loaded.target.device
    peer = HuggingFacePeer.load(loaded.path, like, loaded.tokenizer.end_token_ids)
    bound = near_tie_bound(loaded.target)  # theirs are other sums, also in deterministic mode
    results, notes = [], []
    with ExitStack() as stack:
        vllm = stack.enter_context(open_vllm(bench, loaded.path))
        if vllm is None:
            notes.append("peer vllm: not installed, left out (pip install vllm)")
        for cell in chosen_cells(bench, CELLS[:2]):
            with engine_runners(bench, bench.drafts()[-1:], cell.batch_size, items) as ours:
                peers = _peers(peer, cell)
                runners: list[Runner] = [*ours, *peers, *([vllm] if vllm else [])]
                checked = [one.name for one in (*ours[1:], *peers)]
                results.append(run_cell(bench, runners, items, cell, checked=checked, bound=bound))
    section = cells_section("peers", results)
    return dataclasses.replace(section, notes=[*notes, *section.notes])


def _peers(peer: HuggingFacePeer, cell: Cell) -> list[Runner]:
    plain = HfRunner(HF_PLAIN, peer, cell.batch_size)
    if cell.batch_size > 1:  # transformers batches no lookup
        return [plain]
    return [plain, HfRunner(HF_LOOKUP, peer, 1, lookup=True)]


PEERS = Part("peers", "Hugging Face generate, and vLLM if installed, beside ours", measure)
