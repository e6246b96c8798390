"""The processes of one training and the precision of its forward, by ``accelerate``.

Owns what processes tell each other; does not know what is trained. Every process draws the same
traces and takes its own share of them, so that several processes compute the gradient of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from dvi.config import DviConfig

if TYPE_CHECKING:
    from accelerate import Accelerator

# Rank 0 may answer a file for hours while the others wait.
WAIT_LIMIT = timedelta(days=7)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those of the training. All of them call every method in the same order.

    Without an accelerator there is one process in full precision, and nothing is changed by a bit.
    """

    accelerator: Accelerator | None = None

    @property
    def rank(self) -> int:
        """0 is the one that writes and prints."""
        return 0 if self.accelerator is None else int(self.accelerator.process_index)

    @property
    def size(self) -> int:
        """Number of processes."""
        return 1 if self.accelerator is None else int(self.accelerator.num_processes)

    def shares(self, items: Sequence[T]) -> list[Sequence[T]]:
        """What each process does; some may have nothing to do."""
        return [items[rank :: self.size] for rank in range(self.size)] if self.size > 1 else [items]

    def autocast(self) -> AbstractContextManager[None]:
        """The precision of a trained forward."""
        return nullcontext() if self.accelerator is None else self.accelerator.autocast()

    def sum_gradients(self, params: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over the processes; one that has none adds zero."""
        if self.accelerator is None or self.size == 1:
            return
        trained = list(params)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        flat = torch.cat([grad.reshape(-1) for grad in grads])  # one message a step
        total = self.accelerator.reduce(flat, reduction="sum")
        parts = total.split([grad.numel() for grad in grads])
        for param, part in zip(trained, parts, strict=True):
            param.grad = part.view_as(param).clone()

    def gather(self, items: Sequence[T]) -> list[T]:
        """Everybody's items, rank by rank; waits for all."""
        if self.accelerator is None or self.size == 1:
            return list(items)
        from accelerate.utils import gather_object

        return list(gather_object(list(items)))


ONE = Ranks()


def open_ranks(config: DviConfig, env: Mapping[str, str]) -> Ranks:
    """The processes that a launcher started (``accelerate launch``, torchrun), or this one."""
    is_many = int(env.get("WORLD_SIZE", "1")) > 1
    if not is_many and config.trainer.mixed_precision == "no":
        return ONE
    # Imported here: it takes a second, and a single process in full precision needs none of it.
    from accelerate import Accelerator, InitProcessGroupKwargs

    return Ranks(
        Accelerator(
            cpu=config.model.device == "cpu" or not torch.cuda.is_available(),
            mixed_precision=config.trainer.mixed_precision,
            kwargs_handlers=[InitProcessGroupKwargs(timeout=WAIT_LIMIT)],
        )
    )
