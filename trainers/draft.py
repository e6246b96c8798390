"""The training copy of the draft: values at one version, exchanged for another's to compare.

Owns the module that learns; does not know optimizer, registry or rows.
Letters: P trained positions, V ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from dvi.config import DrafterConfig
from dvi.drafting import lora
from dvi.drafting.factory import draft_branch
from dvi.drafting.layout import DraftLayout
from dvi.drafting.module import DraftModule
from dvi.modeling.target import TargetModel
from trainers.batch import Batch


class Draft:
    """A wrapped draft module. One thread; only optimizer and ``showing`` change its values."""

    def __init__(self, module: nn.Module, layout: DraftLayout, seed: int) -> None:
        self.module = module
        self.layout = layout
        self.seed = seed  # of version 0's drawn values

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """[P, V], differentiable, from h_k [B, T, H] of the batch."""
        return lora.draft_logits(self.module, hidden, batch.positions, batch.lengths, batch.select)

    def save(self, folder: Path) -> None:
        """Write the adapter's two files."""
        lora.save(self.module, folder)

    def start_from(self, tensors: Mapping[str, Tensor] | None) -> None:
        """Take a published version's values, or version 0's (None).

        Raises AdapterRefused on tensors that do not fit, with nothing changed.
        """
        if tensors is None:
            lora.reset(self.module, torch.Generator().manual_seed(self.seed))
        else:
            lora.load_into(self.module, self.layout, tensors)

    @contextmanager
    def showing(self, tensors: Mapping[str, Tensor] | None) -> Iterator[None]:
        """Another version's values (None: version 0) inside, the own ones back after, bit for bit.

        Raises AdapterRefused on tensors that do not fit, with nothing changed.
        """
        params = [param for param in self.module.parameters() if param.requires_grad]
        own = [param.detach().clone() for param in params]
        try:
            self.start_from(tensors)
            yield
        finally:
            with torch.no_grad():
                for param, value in zip(params, own, strict=True):
                    param.copy_(value)


def make_draft(config: DrafterConfig, target: TargetModel, seed: int) -> Draft:
    """The draft at version 0; the seed alone decides its drawn values.

    Raises ValueError for a drafter that has nothing to train.
    """
    branch = draft_branch(config, target)
    generator = torch.Generator().manual_seed(seed)
    return Draft(lora.wrap(DraftModule(branch), branch.layout, generator), branch.layout, seed)
