"""Adapters for a tiny target: good ones, and bad ones of every sort that a suite should know.

Owns how they are made; knows no property. Letters: T tokens of a text, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dvi.drafting import DraftModule, draft_branch, lora
from dvi.modeling.target import TargetModel
from tests.drafting.rows import config_for, random_tensors, shallow_states

Tensors = dict[str, Tensor]


def fitted(
    target: TargetModel, texts: Sequence[Sequence[int]], shift: int = 0, steps: int = 20
) -> Tensors:
    """Trained on what follows in these texts, or on a wrong token where ``shift`` is not 0."""
    branch = draft_branch(config_for("block", target), target)
    module = lora.wrap(DraftModule(branch), branch.layout, torch.Generator().manual_seed(0))
    learning = [value for value in module.parameters() if value.requires_grad]
    optimizer = torch.optim.Adam(learning, lr=0.02)
    states = [shallow_states(target, text)[:-1] for text in texts]  # [T - 1, H] each
    hidden = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
    lengths = torch.tensor([len(one) for one in states])
    positions = torch.arange(hidden.shape[1]).expand(len(texts), -1)
    select = torch.tensor([(i, j) for i, one in enumerate(states) for j in range(len(one))])
    wanted = torch.tensor([token for text in texts for token in text[1:]])
    wanted = (wanted + shift) % target.spec.num_token_ids
    for _ in range(steps):
        logits = lora.draft_logits(module, hidden, positions, lengths, select)
        optimizer.zero_grad()
        F.cross_entropy(logits, wanted).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in lora.adapter_tensors(module).items()}


def scaled(tensors: Mapping[str, Tensor], factor: float) -> Tensors:
    """Every value times ``factor``."""
    return {name: value * factor for name, value in tensors.items()}


def with_nan(tensors: Mapping[str, Tensor], index: int) -> Tensors:
    """One value of one tensor is not a number."""
    spoilt = {name: value.clone() for name, value in tensors.items()}
    spoilt[sorted(spoilt)[index]].view(-1)[-1] = float("nan")
    return spoilt


def planted(
    target: TargetModel, good: Mapping[str, Tensor], texts: Sequence[Sequence[int]]
) -> Iterator[tuple[str, Tensors]]:
    """Twenty bad adapters with their sort."""
    layout = draft_branch(config_for("block", target), target).layout
    for seed, scale in ((1, 0.1), (2, 0.3), (3, 1.0), (4, 3.0), (5, 100.0)):
        yield "random", random_tensors(layout, seed, scale)
    for factor in (-1.0, 30.0, 1e3, -1e4):
        yield "scaled", scaled(good, factor)
    for shift in (1, 7, 20, 31):
        yield "poisoned", fitted(target, texts[:4], shift)
    generator = torch.Generator().manual_seed(9)
    for _ in range(3):  # one line of noise learned by heart
        noise = torch.randint(target.spec.num_token_ids, (24,), generator=generator).tolist()
        yield "overfitted", fitted(target, [noise], steps=40)
    for shift in (2, 3):  # of a time when the texts said something else
        yield "stale", fitted(target, [text[::-1] for text in texts[:4]], shift)
    for index in (0, -1):
        yield "not finite", with_nan(good, index)
