"""Log-probabilities as users ask for them: the target's raw ones, at T = 1.

Owns nothing but the arithmetic; does not know which positions were kept. Raw means before bias,
penalties, masks and temperature, so they are the same whatever a request asks of its tokens.
Letters: C positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dvi.types import TokenLogprob


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], num_top: int
) -> tuple[TokenLogprob, ...]:
    """One entry a row of raw ``logits`` [C, V]: its token's, and the ``num_top`` likeliest.

    Alternatives descend; an id that does not exist (-inf) is none.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    norm = wide.logsumexp(-1)  # [C]
    rows = torch.arange(len(token_ids), device=wide.device)
    own = (wide[rows, torch.tensor(token_ids, device=wide.device)] - norm).tolist()
    top = wide.topk(min(num_top, wide.shape[-1]))
    top_ids = top.indices.tolist()  # [C][num_top]
    top_logprobs = (top.values - norm[:, None]).tolist()
    return tuple(
        TokenLogprob(token_id, logprob, _alternatives(ids, logprobs))
        for token_id, logprob, ids, logprobs in zip(
            token_ids, own, top_ids, top_logprobs, strict=True
        )
    )


def _alternatives(ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[int, float], ...]:
    return tuple(
        (token_id, logprob)
        for token_id, logprob in zip(ids, logprobs, strict=True)
        if logprob > float("-inf")
    )
