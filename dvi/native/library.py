"""The compiled kernels: their structures, and the library that holds them.

Owns loading and what crosses to C; does not know tensors. OpenMP's functions are those of torch, so
that its threads are torch's own.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from functools import cache

import torch  # noqa: F401  its OpenMP has to be there before the library

from dvi.native.find import can_run, compiled_files

logger = logging.getLogger(__name__)

ABI = 2  # dvi_abi of layer.c
LANES = 16  # inputs and head width come in multiples of it; 8-bit inputs in four times it
MOST_BYTES = 65536  # inputs of a product of bytes: its sums of 255 * 127 fit 32 bits
BLOCK = 4  # outputs at a time, so there are as many at least


class CMatrix(Structure):
    """``Matrix`` of product.h."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
    )


class CLayer(Structure):
    """``Layer`` of layer.c."""

    _fields_ = (
        ("qkv", CMatrix),
        ("o", CMatrix),
        ("gate_up", CMatrix),
        ("down", CMatrix),
        ("input_norm", c_void_p),
        ("post_norm", c_void_p),
        ("qk_norm", c_void_p),
        ("hidden", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("width", c_int64),
        ("intermediate", c_int64),
        ("eps", c_double),
    )


class CPass(Structure):
    """``Pass`` of layer.c."""

    _fields_ = (
        ("rows", c_void_p),
        ("positions", c_void_p),
        ("pieces", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("cache", c_void_p),
        ("num_positions", c_int64),
        ("num_pieces", c_int64),
        ("num_keys", c_int64),
        ("cache_rows", c_int64),
        ("capacity", c_int64),
    )


@cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they were not built or this processor cannot run them.

    DVI_KERNELS=torch in the environment leaves them unused, to compare.
    """
    if os.environ.get("DVI_KERNELS") == "torch" or not can_run():
        return None
    why = "they were not compiled: `dvi doctor` says what to do"
    for path in compiled_files():
        try:
            loaded = ctypes.CDLL(str(path))
        except OSError as error:  # built for another system, or torch has another OpenMP
            why = str(error)
            continue
        if loaded.dvi_abi() == ABI:
            return _typed(loaded)
        why = f"{path.name} is of another version: install again"
    logger.warning("decode steps are slower without our kernels, %s", why)
    return None


def fits(inputs: Sequence[int], head_dim: int, *, is_quantized: bool) -> bool:
    """Whether the library is there and runs a model whose products have these ``inputs``."""
    lanes = 4 * LANES if is_quantized else LANES
    return (
        library() is not None and not any(size % lanes for size in inputs) and not head_dim % LANES
    )


def _typed(loaded: ctypes.CDLL) -> ctypes.CDLL:
    loaded.dvi_scratch.restype = c_int64
    loaded.dvi_scratch.argtypes = [POINTER(CLayer), POINTER(CPass), c_int64]
    loaded.dvi_layer.restype = None
    loaded.dvi_layer.argtypes = [
        *(POINTER(CLayer), POINTER(CPass), c_int64),
        *(c_void_p, c_void_p, c_void_p, c_int64),
    ]
    loaded.dvi_product.restype = None
    loaded.dvi_product.argtypes = [
        *(POINTER(CMatrix), c_void_p, c_int64, c_void_p, c_void_p, c_int64),
    ]
    loaded.dvi_top.restype = c_int64
    loaded.dvi_top.argtypes = [
        *(c_void_p, c_int64, c_int64),
        *(c_void_p, c_void_p, c_void_p),
    ]
    return loaded
