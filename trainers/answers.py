"""The target's side of a file: it answers prompts, and judges answers that are given.

Owns traces made without a server; does not know files. Answers come from the engine itself, so a
row of a file and a row of live traffic are the same thing to the trainer.
Letters: T answer tokens, M kept ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from dvi.config import DviConfig
from dvi.decoding import decode_batch
from dvi.decoding.startup import Loaded, Outlets, engine_on
from dvi.modeling.plan import Segment
from dvi.types import DecodeRequest, FinishReason, Round, SamplingParams, Source, Trace
from trainers.examples import Example

LOGIT_ROWS = 128  # positions whose logits are held at once


class Answerer:
    """Makes traces of examples, many at a time. One thread."""

    def __init__(self, loaded: Loaded, config: DviConfig) -> None:
        self.loaded = loaded
        self.config = config
        self.made: dict[str, Trace] = {}
        plain = replace(
            config,
            drafter=replace(config.drafter, kind="none"),
            # A row must not depend on what was answered before it: a resumed run has answered less.
            decoding=replace(config.decoding, prefix_scope="off"),
            serving=replace(config.serving, max_batch_size=config.data.batch_size),
        )
        outlets = Outlets(trace_sink=self._take, wall_clock=lambda: 0.0)
        self.engine = engine_on(loaded, plain, outlets).engine
        self.cache = loaded.target.new_cache(
            loaded.target.spec.num_layers, 1, config.serving.max_context_len
        )

    def traces(self, examples: Sequence[Example], first_number: int) -> list[Trace]:
        """A trace an example, in order; numbered from ``first_number`` by their request ids.

        Examples must be ``fits`` ones. An answer is a function of the example and its number.
        """
        names = [f"row-{first_number + i}" for i in range(len(examples))]
        pairs = list(zip(names, examples, strict=True))
        decode_batch(self.engine, [self._request(n, e) for n, e in pairs if e.answer_ids is None])
        for name, example in pairs:
            if example.answer_ids is not None:
                self.made[name] = self._judged(name, example.prompt_ids, example.answer_ids)
        made, self.made = self.made, {}
        return [made[name] for name in names if name in made]

    def fits(self, example: Example) -> bool:
        """Whether prompt (and answer) have room and hold known ids only."""
        ids = (*example.prompt_ids, *(example.answer_ids or ()))
        room = self.config.serving.max_context_len
        return 0 < len(ids) < room and max(ids) < self.loaded.target.spec.num_token_ids

    def _request(self, name: str, example: Example) -> DecodeRequest:
        data = self.config.data
        room = self.config.serving.max_context_len - len(example.prompt_ids)
        sampling = SamplingParams(
            max_tokens=min(data.max_tokens, room),
            temperature=data.temperature,
            seed=self.config.run.seed + int(name.removeprefix("row-")),
            end_token_ids=self.loaded.tokenizer.end_token_ids,
        )
        return DecodeRequest(name, example.prompt_ids, sampling, speculation=False)

    def _take(self, trace: Trace) -> None:
        self.made[trace.request_id] = trace

    @torch.no_grad()
    def _judged(self, name: str, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Trace:
        """What the target says at every position of an answer that somebody else wrote."""
        target = self.loaded.target
        plan = target.plan([Segment(0, 0, (*prompt, *answer[:-1]))])
        hidden = target.deep(target.shallow(plan, self.cache), plan, self.cache)
        parts = [
            _top_rows(target.logits(rows), self.config.replay.top_ids)
            for rows in torch.split(hidden[len(prompt) - 1 :], LOGIT_ROWS)
        ]
        top_ids, top_logits, logsumexp = (
            np.concatenate(arrays) for arrays in zip(*parts, strict=True)
        )
        return Trace(
            request_id=name,
            prompt_ids=prompt,
            output_ids=answer,
            sampling=SamplingParams(max_tokens=len(answer), temperature=0.0),
            finish_reason=FinishReason.STOP,
            system_fingerprint="",
            top_ids=top_ids,
            top_logits=top_logits,
            logsumexp=logsumexp,
            rounds=(Round(Source.TARGET, 0, (), (), 0),) * len(answer),
        )


def _top_rows(logits: torch.Tensor, top_ids: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[T, V] -> ids [T, M], logits [T, M] in descending order, logsumexp [T], as a trace has."""
    wide = logits.float()
    top = wide.topk(min(top_ids, wide.shape[-1]))
    return (
        top.indices.to(torch.int32).numpy(force=True),
        top.values.numpy(force=True),
        wide.logsumexp(-1).numpy(force=True),
    )
