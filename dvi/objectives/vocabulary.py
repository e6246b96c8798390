"""The only code of the loss that walks over a whole vocabulary: a few sums a row, with gradient.

Owns the memory bound: nothing of the logits' size but the logits and their gradient. Does not know
what the sums are for. Letters: P positions, V vocabulary, M kept ids a position, J picked logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_CHUNK_ELEMENTS = (
    1 << 18
)  # logits worked on at once: 1 MiB in float32, which stays in a core's cache


@dataclass(frozen=True, slots=True)
class VocabSums:
    """What the terms need of raw logits [P, V]; all but ``top`` carry a gradient."""

    kept: Tensor  # [P, M], logits of the kept ids
    picked: Tensor  # [J], logits of the picked (row, id)
    tail: Tensor  # [P], log-sum-exp over all ids that are not kept
    entropy: Tensor  # [P], of the softmax; 0 unless asked for
    top: Tensor  # [P], largest logit


def vocab_sums(
    logits: Tensor, kept_ids: Tensor, picked: Tensor, *, with_entropy: bool
) -> VocabSums:
    """The sums of ``logits`` [P, V] for ``kept_ids`` [P, M], distinct in a row, and ``picked``
    [2, J], rows and ids that may repeat.

    Logits may be -inf. The tail is summed over its own ids, not taken as one minus the rest, which
    would round away where the draft is sure; its log falls at most log of the smallest normal
    number below ``top``, also if no id is left (M = V).
    """
    sums = _VocabSums.apply(logits, kept_ids, picked, with_entropy)  # type: ignore[no-untyped-call]
    return VocabSums(*sums)


class _VocabSums(torch.autograd.Function):
    """Rows are walked in chunks that fit a cache; the backward pass recomputes the exponentials."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, kept_ids: Tensor, picked: Tensor, with_entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        kept, chosen = logits.gather(1, kept_ids), logits[picked[0], picked[1]]
        top = logits.amax(-1)
        tail, entropy = torch.empty_like(top), torch.zeros_like(top)
        for chunk in _chunks(logits):
            shifted = logits[chunk] - top[chunk, None]
            if with_entropy:
                entropy[chunk] = _entropy(shifted)
            others = shifted.exp_().scatter_(1, kept_ids[chunk], 0.0).sum(-1)
            tail[chunk] = others.clamp_(min=torch.finfo(top.dtype).tiny).log_() + top[chunk]
        ctx.save_for_backward(logits, kept_ids, picked, kept, tail, entropy)
        ctx.with_entropy = with_entropy
        ctx.mark_non_differentiable(top)
        return kept, chosen, tail, entropy, top

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None, None]:
        """d tail / d z_x = exp(z_x - tail) off the kept ids; d H / d z_x = -q_x (z_x - mean z)."""
        logits, kept_ids, picked, kept, tail, entropy = ctx.saved_tensors
        on_kept, on_picked, on_tail, on_entropy, _ = upstream
        gradient = torch.empty_like(logits)
        for chunk in _chunks(logits):
            part = torch.sub(logits[chunk], tail[chunk, None], out=gradient[chunk]).exp_()
            part.mul_(on_tail[chunk, None]).scatter_(1, kept_ids[chunk], 0.0)
            if ctx.with_entropy:
                total = torch.logaddexp(tail[chunk], kept[chunk].logsumexp(-1))
                mean = (total - entropy[chunk])[:, None]
                off_mean = (logits[chunk] - mean).clamp_(min=torch.finfo(logits.dtype).min)
                probs = (logits[chunk] - total[:, None]).exp_()
                part.sub_(probs.mul_(off_mean).mul_(on_entropy[chunk, None]))
        gradient.scatter_add_(1, kept_ids, on_kept)
        gradient.index_put_((picked[0], picked[1]), on_picked, accumulate=True)
        return gradient, None, None, None


def _chunks(logits: Tensor) -> Iterator[slice]:
    size = max(1, _CHUNK_ELEMENTS // logits.shape[1])
    for start in range(0, logits.shape[0], size):
        yield slice(start, start + size)


def _entropy(shifted: Tensor) -> Tensor:
    """Entropy of softmax rows from logits [n, V] less their maximum; -inf has probability 0."""
    weights = shifted.exp()
    total = weights.sum(-1)
    finite = shifted.clamp(min=torch.finfo(shifted.dtype).min)
    return total.log() - weights.mul_(finite).sum(-1) / total
