"""CUDA graphs as a CPU can have them: the tensor operations of a function, done again in place.

Owns the recording alone. As with a graph, what is done again is what was done: same operations, on
the same storage, with the numbers that were known to Python then. Whatever reads a tensor's value
cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dvi.modeling.capture import Made, Recording
from tests.gpu.simulated import SimTensor

# A number for torch.where becomes a tensor in host memory, which a GPU then copies.
COPIES_NUMBERS = ("where.ScalarSelf", "where.ScalarOther", "where.Scalar")
READS_VALUES = ("item", "_local_scalar_dense", "nonzero", "equal", "is_nonzero")


class Recorder(TorchDispatchMode):
    """Keeps each operation with its arguments and the tensors that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS_VALUES:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        if f"{name}.{func._overloadname}" in COPIES_NUMBERS:
            raise RuntimeError(f"{name} copies a number while a stream is capturing")
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if len({type(one) for one in tree_leaves((args, kwargs, made)) if _is_array(one)}) > 1:
            raise RuntimeError(f"{name} between host and device while a stream is capturing")
        given = {_storage(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        own = [one for one in tree_leaves(made) if isinstance(one, Tensor)]
        fresh = [None if _storage(one) in given else one for one in own]
        if any(one is not None for one in fresh) or func._schema.is_mutable:
            self.steps.append(lambda: _again(func, args, kwargs, fresh))
        return made


def _again(func: Any, args: Any, kwargs: Any, fresh: list[Tensor | None]) -> None:
    made = [one for one in tree_leaves(func(*args, **kwargs)) if isinstance(one, Tensor)]
    for kept, one in zip(fresh, made, strict=True):
        if kept is not None:
            kept.copy_(one)


def _is_array(value: Any) -> bool:
    """A tensor that is no single number."""
    return isinstance(value, Tensor) and value.dim() > 0


def _storage(tensor: Tensor) -> int:
    inner = tensor.inner if isinstance(tensor, SimTensor) else tensor
    return inner.untyped_storage().data_ptr()


class CpuCapture:
    """See Capture. ``replays`` counts; ``fails_at`` is the recording that cannot be made."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.recorded = 0
        self.replays = 0
        self.fails_at = fails_at
        self._is_capturing = False

    def __call__(self, function: Callable[[], Made]) -> Recording[Made]:
        if self._is_capturing or self.recorded == self.fails_at:
            raise RuntimeError("no room for another recording, or within one")
        self.recorded += 1
        recorder = Recorder()
        self._is_capturing = True
        try:
            function()
            with recorder:
                made = function()
        finally:
            self._is_capturing = False
        if isinstance(made, Tensor):
            made.fill_(float("nan"))  # a recording computes nothing

        def replay() -> None:
            self.replays += 1
            with torch.inference_mode():
                for step in recorder.steps:
                    step()

        return Recording(made, replay)
