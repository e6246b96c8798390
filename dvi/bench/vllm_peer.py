"""vLLM as a runner, where it is installed.

Owns the calls of its offline interface; nothing of ours depends on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dvi.bench.bench import BATCH_SIZES, Bench, Ids
from dvi.bench.race import Answer, How
from dvi.decoding.stats import Phase


@dataclass(frozen=True, slots=True)
class VllmRunner:
    """All prompts of a turn at once, as vLLM schedules them."""

    name: str
    engine: Any  # vllm.LLM
    end_token_ids: Ids

    def run(self, prompts: Sequence[Ids], how: How) -> list[Answer]:
        """See Runner. Its sampled answers have other noise than ours."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                max_tokens=how.max_tokens,
                temperature=how.temperature,
                seed=how.first_seed + place,
                stop_token_ids=list(self.end_token_ids),
                detokenize=False,
            )
            for place in range(len(prompts))
        ]
        inputs = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = self.engine.generate(inputs, params, use_tqdm=False)
        return [Answer(tuple(one.outputs[0].token_ids)) for one in outputs]

    def phase_s(self) -> Mapping[Phase, float]:
        """Not measured."""
        return {}


@contextmanager
def open_vllm(bench: Bench, path: Path) -> Iterator[VllmRunner | None]:
    """The runner with room for our largest batch; None where vLLM is not installed."""
    if find_spec("vllm") is None:
        yield None
        return
    from vllm import LLM

    engine = LLM(
        model=str(path),
        dtype=bench.config.model.dtype,
        max_model_len=bench.config.serving.max_context_len,
        max_num_seqs=max(BATCH_SIZES),
        seed=0,
    )
    yield VllmRunner("vllm", engine, bench.loaded().tokenizer.end_token_ids)
