"""Our engines as runners.

Owns requests and their collecting; does not know what else is measured.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from dvi.bench.bench import Bench, EngineShape, Ids, Subject
from dvi.bench.prompts import Item
from dvi.bench.race import Answer, How
from dvi.decoding.batch import join_deltas
from dvi.decoding.stats import Phase
from dvi.types import Delta, SamplingParams

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class EngineRunner:
    """One engine; its memory and its estimates go on from turn to turn, as they do in service."""

    name: str
    subject: Subject

    def run(self, prompts: Sequence[Ids], how: How) -> list[Answer]:
        """See Runner. Answers end where the model ends them."""
        engine = self.subject.engine
        ends = self.subject.opened.tokenizer.end_token_ids
        received: list[list[Delta]] = [[] for _ in prompts]
        first_s: list[float | None] = [None for _ in prompts]
        start_s = time.perf_counter()
        for place, prompt in enumerate(prompts):
            params = SamplingParams(
                max_tokens=how.max_tokens,
                temperature=how.temperature,
                seed=how.first_seed + place,
                end_token_ids=ends,
            )
            request = self.subject.request(prompt, params, speculation=True)
            engine.submit(request, received[place].append)
        while engine.step().worked:
            now_s = time.perf_counter() - start_s
            for place, deltas in enumerate(received):
                if first_s[place] is None and deltas:
                    first_s[place] = now_s
        results = [join_deltas(deltas) for deltas in received]
        return [
            Answer(result.token_ids, first, result.counts)
            for result, first in zip(results, first_s, strict=True)
        ]

    def phase_s(self) -> Mapping[Phase, float]:
        """See Runner."""
        return self.subject.engine.stats().phase_s


@contextmanager
def engine_runners(
    bench: Bench, kinds: Sequence[str], num_rows: int, items: Sequence[Item]
) -> Iterator[list[EngineRunner]]:
    """Plain decoding, then one engine for each kind of drafter, with room for these prompts."""
    most = max(len(item.ids) for item in items) + bench.config.bench.max_tokens
    gc.collect()  # caches of engines before these are large, and engines are cycles
    with ExitStack() as stack:
        shapes = {PLAIN: EngineShape("none", num_rows, max_context_len=most)}
        shapes |= {kind: EngineShape(kind, num_rows, max_context_len=most) for kind in kinds}
        yield [
            EngineRunner(name, stack.enter_context(bench.engine(shape)))
            for name, shape in shapes.items()
        ]
