"""A device that is not the CPU, on any machine: what a GPU would refuse is refused here.

Owns the pretence. Tensors of SIM hold a CPU tensor and compute with it. An operation on
tensors of both devices fails, as does reading one as an array.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

MOVES = ("copy_", "to", "_to_copy", "lift_fresh")
INDEXED = ("index", "index_put_", "_index_put_impl_")  # a GPU takes indices from host memory too


SIM = torch.device("meta")  # a device that torch knows in every build


class SimTensor(Tensor):
    """A tensor of the device; ``inner`` is where its values are."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> SimTensor:
        with torch.inference_mode(inner.is_inference()):
            made = Tensor._make_wrapper_subclass(
                cls,
                inner.size(),
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=SIM,
            )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a tensor of the simulated device outside of simulated_device()")

    def tolist(self) -> Any:
        return self.inner.tolist()

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert sim device type tensor to numpy")
        return self.inner.numpy().copy()


class SimulatedDevice(TorchDispatchMode):
    """Computes on the inner tensors; checks where the arguments are."""

    def __init__(self) -> None:
        super().__init__()
        self.most_numbers_read = 0  # that one copy brought to the host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        on_device = [isinstance(one, SimTensor) for one in tensors if one.dim()]
        is_sim = any(isinstance(one, SimTensor) for one in tensors)
        if any(on_device) and not all(on_device) and name not in (*MOVES, *INDEXED):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        asked = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.device)]
        goes_over = bool(asked) and bool(tensors) and is_sim != (asked[0] == SIM)
        if goes_over and is_sim:
            self.most_numbers_read = max(self.most_numbers_read, tensors[0].numel())
        if asked:
            is_sim = asked[0] == SIM
        elif name == "copy_":
            is_sim = isinstance(tensors[0], SimTensor)
        plain_args, plain_kwargs = tree_map(_inner, (args, kwargs))
        made = func(*plain_args, **plain_kwargs)
        if goes_over:  # never the same memory
            made = made.clone()
        whole = (*tensors, *tree_leaves(made))
        assert not any(map(_is_empty, whole)), f"{name}: a tensor without values"
        if func._schema.is_mutable and isinstance(made, Tensor):
            return next(one for one in tensors if _inner(one) is made)
        return tree_map(
            lambda one: SimTensor(one) if is_sim and isinstance(one, Tensor) else one, made
        )


def _is_empty(value: object) -> bool:
    """A tensor that torch put on SIM behind our back: it has no values."""
    return isinstance(value, Tensor) and value.is_meta and not isinstance(value, SimTensor)


_plain_tensor = torch.tensor


def _tensor(data: Any, *, device: torch.device | None = None, **kwargs: Any) -> Tensor:
    """``torch.tensor``, which copies nothing to the device that SIM stands for."""
    made = _plain_tensor(data, **kwargs)
    return made if device is None else made.to(device)


def _inner(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.inner if isinstance(value, SimTensor) else value


@contextmanager
def simulated_device() -> Iterator[SimulatedDevice]:
    """Tensors of SIM can be made inside."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with mock.patch("torch.tensor", _tensor), SimulatedDevice() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
