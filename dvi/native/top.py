"""The largest of many logits by the compiled kernels.

Does not know what they are kept for. Letters: V vocabulary.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dvi.native.library import LANES, library

COLUMN = 64  # of top.c


def top_candidates(row: NDArray[np.float32], count: int) -> tuple[NDArray[np.int32], float] | None:
    """Ids, ascending, of some of ``row`` [V] that hold its ``count`` largest; log(sum(exp(row))).

    Any of several equal values may be among them, so all are. None where the library cannot.
    """
    loaded = library()
    if loaded is None or row.dtype != np.float32 or not row.flags.c_contiguous:
        return None
    ids = np.empty(row.size, np.int32)
    keys = np.empty(row.size // COLUMN + LANES, np.int32)
    mass = np.empty(2, np.float32)
    pointers = (ids.ctypes.data, keys.ctypes.data, mass.ctypes.data)
    found = loaded.dvi_top(row.ctypes.data, row.size, count, *pointers)
    return ids[:found], float(mass[0]) + math.log(mass[1])
