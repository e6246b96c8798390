"""The training copy of the draft: values at one version, exchanged for another's to compare.

Owns the module that learns and the list of its head's rows; does not know optimizer or registry.
Letters: P trained positions, R rows of the head that are computed, V ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from dvi.config import DrafterConfig
from dvi.drafting import lora
from dvi.drafting.branch import DraftBranch
from dvi.drafting.factory import draft_branch
from dvi.drafting.layout import DraftLayout
from dvi.drafting.module import DraftModule
from dvi.drafting.vocab import DraftVocab, ranked_vocab, vocab_of
from dvi.modeling.target import TargetModel
from dvi.registry import Adapter
from trainers.batch import Batch


class Draft:
    """A wrapped draft module. One thread; only optimizer and ``showing`` change its values."""

    def __init__(self, module: nn.Module, branch: DraftBranch, seed: int) -> None:
        self.module = module
        self.branch = branch
        self.seed = seed  # of version 0's drawn values
        self.vocab = self.check_list(None)  # None: all rows

    @property
    def layout(self) -> DraftLayout:
        """Names and shapes of the values."""
        return self.branch.layout

    def logits(self, hidden: Tensor, batch: Batch, rows: Tensor | None) -> Tensor:
        """[P, V], or [P, R] of ``rows``, differentiable, from h_k [B, T, H] of the batch."""
        return lora.draft_logits(
            self.module, hidden, batch.positions, batch.lengths, batch.select, rows=rows
        )

    def follow(self, counts: Tensor) -> None:
        """Choose the rows by ``counts`` [V] of traffic; a list that differs is a new version."""
        if self.vocab is None:
            return
        newer = ranked_vocab(counts, len(self.vocab.ids), self.vocab.version + 1)
        if not torch.equal(newer.ids, self.vocab.ids):
            self.vocab = newer

    def save(self, folder: Path) -> None:
        """Write the adapter's files: PEFT's two, and the list of a trimmed head."""
        lora.save(self.module, folder)
        if self.vocab is not None:
            self.vocab.save(folder)

    def check_list(self, adapter: Adapter | None) -> DraftVocab | None:
        """The list that goes with a version; raises AdapterRefused where it does not fit."""
        stored = None if adapter is None else adapter.draft_vocab
        return vocab_of(stored, self.branch.vocab_size, self.branch.spec)

    def take_list(self, stored: Mapping[str, Tensor] | None) -> None:
        """Use a stored list, or the one without counts."""
        self.vocab = vocab_of(stored, self.branch.vocab_size, self.branch.spec)

    def start_from(self, adapter: Adapter | None) -> None:
        """Take a published version's values and list, or version 0's (None).

        Raises AdapterRefused on tensors that do not fit, with nothing changed.
        """
        vocab = self.check_list(adapter)
        if adapter is None:
            lora.reset(self.module, torch.Generator().manual_seed(self.seed))
        else:
            lora.load_into(self.module, self.layout, adapter.tensors)
        self.vocab = vocab

    @contextmanager
    def showing(self, adapter: Adapter | None) -> Iterator[None]:
        """Another version's values (None: version 0) inside, the own ones back after, bit for bit.

        Raises AdapterRefused on tensors that do not fit, with nothing changed.
        """
        params = [param for param in self.module.parameters() if param.requires_grad]
        own, vocab = [param.detach().clone() for param in params], self.vocab
        try:
            self.start_from(adapter)
            yield
        finally:
            self.vocab = vocab
            with torch.no_grad():
                for param, value in zip(params, own, strict=True):
                    param.copy_(value)


def make_draft(config: DrafterConfig, target: TargetModel, seed: int) -> Draft:
    """The draft at version 0; the seed alone decides its drawn values.

    Raises ValueError for a drafter that has nothing to train.
    """
    branch = draft_branch(config, target)
    generator = torch.Generator().manual_seed(seed)
    return Draft(lora.wrap(DraftModule(branch), branch.layout, generator), branch, seed)
