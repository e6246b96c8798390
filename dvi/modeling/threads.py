"""Modes of the threads that compute.

Owns how many cores tensor operations of a thread take, and what they take of busy ones; does not
know what is computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

UNHURRIED_SHARE = 0.1  # of a core
UNHURRIED_WORK_S = 1e-3  # less is not worth a sleep


def set_thread_modes(num_threads: int) -> None:
    """Cores and floating point of the calling thread; before its first tensor operation."""
    torch.set_num_threads(num_threads)
    # Denormals make some passes many times slower on a CPU.
    torch.set_flush_denormal(True)


class Unhurried(TorchFunctionMode):
    """Within it, tensor operations of this thread take a tenth of a core: it sleeps after each.

    Not by a low priority. Who has had a small share of busy cores stands in line for a hundred
    milliseconds, and at times with the interpreter in hand, so that decoding stands there too; who
    has slept is let in at once (`staging` in docs/bench.md).
    """

    def __init__(self) -> None:
        super().__init__()
        self._since_s = time.thread_time()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See TorchFunctionMode."""
        result = func(*args, **(kwargs or {}))
        worked_s = time.thread_time() - self._since_s
        if worked_s >= UNHURRIED_WORK_S:
            time.sleep(worked_s * (1 / UNHURRIED_SHARE - 1))
            self._since_s = time.thread_time()
        return result
