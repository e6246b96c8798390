"""Hugging Face's own `generate`, for comparisons: plain and with prompt lookup.

Owns the calls; its answers are never served. Counts nothing but ids and the time of the first.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

LOOKUP_TOKENS = 10  # proposals of prompt lookup, as its documentation shows it


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """One answer."""

    token_ids: tuple[int, ...]  # up to and with the end token
    first_token_s: float  # since the call


class _FirstToken(StoppingCriteria):  # type: ignore[misc]
    """Stops nothing; remembers when it was first asked, which is after the first token."""

    def __init__(self) -> None:
        self.at_s: float | None = None

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # noqa: ARG002
        if self.at_s is None:
            self.at_s = time.perf_counter()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class HuggingFacePeer:
    """A model as transformers loads it, beside ours and with weights of its own."""

    def __init__(self, model: Any, end_token_ids: Sequence[int]) -> None:
        self._model = model
        self._ends = list(end_token_ids)

    @classmethod
    def load(
        cls, path: Path, like: tuple[torch.dtype, torch.device], end_token_ids: Sequence[int]
    ) -> HuggingFacePeer:
        """Read a local folder in the dtype and on the device of our target."""
        dtype, device = like
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        return cls(model.to(device).eval(), end_token_ids)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        temperature: float,
        *,
        lookup: bool = False,
    ) -> list[PeerAnswer]:
        """Decode the prompts as one batch, padded on the left.

        With ``lookup`` one prompt, with proposals looked up in its own text.
        """
        longest = max(len(prompt) for prompt in prompts)
        pad = self._ends[0] if self._ends else 0
        rows = [[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        device = self._model.device
        first = _FirstToken()
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        start_s = time.perf_counter()
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=torch.tensor(rows, device=device),
                attention_mask=torch.tensor(mask, device=device),
                max_new_tokens=max_tokens,
                eos_token_id=self._ends or None,
                pad_token_id=pad,
                stopping_criteria=StoppingCriteriaList([first]),
                **sampling,
                prompt_lookup_num_tokens=LOOKUP_TOKENS if lookup else None,
            )
        assert first.at_s is not None
        return [
            PeerAnswer(self._cut(row[longest:]), first.at_s - start_s) for row in output.tolist()
        ]

    def _cut(self, ids: list[int]) -> tuple[int, ...]:
        """Without the padding behind the end token."""
        end = next((place for place, token in enumerate(ids) if token in self._ends), len(ids) - 1)
        return tuple(ids[: end + 1])
