"""What a request does to a row of logits before a token is chosen: bias, penalties, min_tokens.

Owns the arithmetic (vLLM's formulas) and the tokens it depends on; does not know rounds or
grammars. Only ids that the request names or that its text holds are touched.
Letters: V vocabulary, U distinct ids of prompt and output, E end tokens and stop tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dvi.sampling.filters import Logits
from dvi.types import SamplingParams

_FIRST_ROOM = 256  # ids; doubled as the text grows


class TokenHistory:
    """Distinct ids of a text and how often each stands in its output; last in, first out.

    ``push`` and ``pop`` cost O(1), so that the positions of a block can be walked and walked back.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._place = {token_id: place for place, token_id in enumerate(dict.fromkeys(prompt_ids))}
        self._ids = np.zeros(max(len(self._place), _FIRST_ROOM), np.int64)
        self._ids[: len(self._place)] = list(self._place)
        self._counts = np.zeros(self._ids.size)
        self._num_prompt = len(self._place)

    @property
    def ids(self) -> NDArray[np.int64]:
        """[U] distinct ids, those of the prompt first; a view, valid until the next push."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> NDArray[np.float64]:
        """[U] occurrences in the output; a view like ``ids``."""
        return self._counts[: len(self._place)]

    def push(self, token_id: int) -> None:
        """One more output token."""
        place = self._place.setdefault(token_id, len(self._place))
        if place == self._ids.size:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += 1

    def pop(self, token_id: int) -> None:
        """Take back the newest output token, which has to be ``token_id``."""
        place = self._place[token_id]
        self._counts[place] -= 1
        if self._counts[place] == 0 and place >= self._num_prompt:
            del self._place[token_id]  # pushed last of all distinct ids, so it has the last place


class Processors:
    """One request's bias, penalties and min_tokens. Owned by one session, not shared.

    ``num_output`` counts the output tokens before the row that comes next.
    """

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int]) -> None:
        self._repetition = params.repetition_penalty
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        self._bias_ids = np.array([token_id for token_id, _ in params.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in params.logit_bias])
        self._min_tokens = params.min_tokens
        self._ends = np.array(sorted(ending_ids(params)), np.int64)  # [E]
        self._history: TokenHistory | None = None
        if _penalises(params):
            self._history = TokenHistory(prompt_ids if self._repetition != 1 else ())
        self.num_output = 0

    def push(self, token_id: int) -> None:
        """The next row follows ``token_id``."""
        self.num_output += 1
        if self._history is not None:
            self._history.push(token_id)

    def pop(self, token_id: int) -> None:
        """Undo the newest ``push``."""
        self.num_output -= 1
        if self._history is not None:
            self._history.pop(token_id)

    def adjust(self, row: Logits) -> None:
        """Add the bias to ``row`` [V], then take the penalties off; in place."""
        if self._bias_ids.size:
            row[self._bias_ids] += self._bias.astype(row.dtype)
        if self._history is not None and self._history.ids.size:
            ids, counts = self._history.ids, self._history.counts
            values = row[ids].astype(np.float64)
            if self._repetition != 1:
                values = np.where(values > 0, values / self._repetition, values * self._repetition)
            values -= self._frequency * counts + self._presence * (counts > 0)
            row[ids] = values

    def forbidden_ends(self) -> NDArray[np.int64]:
        """Ids that must not stand here: end and stop tokens of an answer that is too short yet."""
        return self._ends if self.num_output < self._min_tokens else self._ends[:0]


def asks_for_processing(params: SamplingParams) -> bool:
    """Whether any field of the request has something to do here."""
    return bool(params.logit_bias) or params.min_tokens > 0 or _penalises(params)


def ending_ids(params: SamplingParams) -> frozenset[int]:
    """Tokens that end the answer: stop tokens, and the model's own unless they are ignored."""
    ends = () if params.ignore_eos else params.end_token_ids
    return frozenset(ends) | frozenset(params.stop_token_ids)


def check_processors(params: SamplingParams, num_token_ids: int) -> None:
    """Raise ValueError for a bias or penalty that no row of logits can take."""
    for name, value in (
        ("presence_penalty", params.presence_penalty),
        ("frequency_penalty", params.frequency_penalty),
    ):
        if not math.isfinite(value):
            raise ValueError(f"{name} is {value}; allowed: finite numbers")
    repetition = params.repetition_penalty
    if not (math.isfinite(repetition) and repetition > 0):
        raise ValueError(f"repetition_penalty is {repetition}; allowed: finite and above 0")
    if params.min_tokens < 0:
        raise ValueError(f"min_tokens is {params.min_tokens}; allowed: 0 or more")
    ids = [token_id for token_id, _ in params.logit_bias]
    for token_id, bias in params.logit_bias:
        if not 0 <= token_id < num_token_ids:
            raise ValueError(f"logit_bias names id {token_id}; allowed: 0 to {num_token_ids - 1}")
        if not math.isfinite(bias):
            raise ValueError(f"logit_bias of id {token_id} is {bias}; allowed: finite numbers")
    if len(set(ids)) != len(ids):
        raise ValueError("logit_bias names an id twice")


def _penalises(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )
