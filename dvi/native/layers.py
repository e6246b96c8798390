"""Products and layers by the compiled kernels: which tensors they read, and their calls.

Does not know models, plans or quantization.
Letters: n rows, I inputs, O outputs, N positions, H hidden width, D head width.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import byref

import torch
from torch import Tensor

from dvi.native.library import BLOCK, LANES, MOST_BYTES, CLayer, CMatrix, CPass, library


class _Scratch(threading.local):
    """Floats that one call needs and no other reads; kept, since fresh pages cost more than they.

    A thread holds as many as its longest pass needed: 28 KB a position of SmolLM2-135M.
    """

    def __init__(self) -> None:
        self._floats = torch.empty(0, dtype=torch.float32, device="cpu")

    def of(self, num_floats: int) -> Tensor:
        """[num_floats] or more, whatever they hold."""
        if self._floats.shape[0] < num_floats:
            self._floats = torch.empty(num_floats, dtype=torch.float32, device="cpu")
        return self._floats


_SCRATCH = _Scratch()


class NativeMatrix:
    """One product; keeps the tensors that the library reads."""

    def __init__(self, library: ctypes.CDLL, c: CMatrix, tensors: Sequence[Tensor | None]) -> None:
        self.c = c
        self._library = library
        self._tensors = tensors

    def __call__(self, x: Tensor) -> Tensor:
        """[n, I] -> [n, O] float32."""
        num_rows = x.shape[0]
        x = x.contiguous()
        out = x.new_empty(num_rows, self.c.outputs)
        room = _SCRATCH.of(num_rows * (self.c.inputs // 2 + 1) if self.c.scales else 0)
        self._library.dvi_product(
            byref(self.c),
            *(x.data_ptr(), num_rows, out.data_ptr(), room.data_ptr(), torch.get_num_threads()),
        )
        return out


def make_native_matrix(
    weight: Tensor, bias: Tensor | None, scales: Tensor | None = None
) -> NativeMatrix | None:
    """The product with ``weight`` [O, I], floats or, with ``scales`` [O], bytes.

    None where the library has no kernel for it.
    """
    loaded = library()
    outputs, inputs = weight.shape
    lanes = LANES if scales is None else 4 * LANES
    kind = torch.float32 if scales is None else torch.int8
    if loaded is None or weight.device.type != "cpu" or weight.dtype != kind:
        return None
    if outputs < BLOCK or inputs % lanes:
        return None
    if scales is not None and (scales.dtype != torch.float32 or inputs > MOST_BYTES):
        return None
    weight = weight.contiguous()
    sums = None if scales is None else weight.sum(1, dtype=torch.int32)
    c = CMatrix(weight.data_ptr(), *map(_pointer, (bias, scales, sums)), outputs, inputs)
    return NativeMatrix(loaded, c, (weight, bias, scales, sums))


class NativePass:
    """One pass over one cache; keeps the tensors that the library reads."""

    def __init__(
        self,
        index: tuple[Tensor, Tensor, Tensor],  # rows and positions [N], first positions of pieces
        tables: tuple[Tensor, Tensor],  # cos and sin [N, D]
        cache: Tensor,  # [layers, 2, rows, kv_heads, capacity, D]
        num_keys: int,  # that its longest position sees
    ) -> None:
        self._tensors = (index, tables, cache)
        pointers = [tensor.data_ptr() for tensor in (*index, *tables, cache)]
        sizes = (index[0].shape[0], index[2].shape[0] - 1, num_keys, cache.shape[2], cache.shape[4])
        self.c = CPass(*pointers, *sizes)


class NativeLayer:
    """One layer, whole: norms, products, rotation, attention and cache writes in one call."""

    def __init__(self, library: ctypes.CDLL, c: CLayer, held: Sequence[object]) -> None:
        self._library = library
        self._layer = c
        self._held = held

    def run(self, hidden: Tensor, given: NativePass, index: int) -> Tensor:
        """[N, H] -> [N, H]; writes keys and values to layer ``index`` of the pass's cache."""
        out = torch.empty_like(hidden)
        self._call(hidden, given, index, out.data_ptr())
        return out

    def write_kv(self, hidden: Tensor, given: NativePass, index: int) -> None:
        """Write the keys and values that ``run`` would write, bit for bit."""
        self._call(hidden, given, index, None)

    def _call(self, hidden: Tensor, given: NativePass, index: int, out: int | None) -> None:
        threads = torch.get_num_threads()
        layer, this = byref(self._layer), byref(given.c)
        hidden = hidden.contiguous()
        scratch = _SCRATCH.of(self._library.dvi_scratch(layer, this, threads))
        self._library.dvi_layer(
            layer, this, index, hidden.data_ptr(), out, scratch.data_ptr(), threads
        )


def make_native_layer(
    matrices: Sequence[NativeMatrix | None],  # qkv, o, gate_up, down
    norms: tuple[Tensor, Tensor, Tensor | None],  # input [H], post [H], q and k [heads, D]
    sizes: tuple[int, int, int, int, int],  # H, query heads, key-value heads, D, intermediate
    eps: float,
) -> NativeLayer | None:
    """None where a matrix or the head width has no kernel."""
    loaded = library()
    if loaded is None or sizes[3] % LANES or any(_is_foreign(norm) for norm in norms):
        return None
    native = [matrix for matrix in matrices if matrix is not None]
    if len(native) < 4:
        return None
    held = [None if norm is None else norm.contiguous() for norm in norms]
    c = CLayer(*(matrix.c for matrix in native), *map(_pointer, held), *sizes, eps)
    return NativeLayer(loaded, c, (native, held))


def _is_foreign(tensor: Tensor | None) -> bool:
    """Whether the library cannot read it."""
    return tensor is not None and (tensor.dtype != torch.float32 or tensor.device.type != "cpu")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
