"""Recording what a function does on a GPU, to run it again without Python.

Owns the CUDA graph; does not know what is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Recording(Generic[Made]):
    """``made`` is what the function returned: ``replay`` writes its tensors anew, in place."""

    made: Made
    replay: Callable[[], None]


class Capture(Protocol):
    """How functions are recorded."""

    def __call__(self, function: Callable[[], Made]) -> Recording[Made]:
        """Record ``function``: it reads and writes the same tensors at every replay.

        It may run several times before: each run must write what the first one wrote. What ``made``
        holds is valid after a replay only. Raises RuntimeError where it cannot be recorded.
        """


class CudaCapture:
    """One CUDA graph a function. All share a pool of memory: they run one after another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Made]) -> Recording[Made]:
        """See Capture. What libraries set up at a first call cannot be recorded: it runs before.

        Other threads go on with the device meanwhile: a version may be prepared there.
        """
        stream = torch.cuda.current_stream()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(stream)
        with torch.cuda.stream(aside):
            function()
        stream.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                made = function()
        finally:
            torch.cuda.set_stream(stream)  # a capture that fails leaves its own behind
        return Recording(made, graph.replay)
