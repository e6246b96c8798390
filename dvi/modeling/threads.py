"""Modes of the threads that compute.

Owns how many cores tensor operations of a thread take, and what it may take of busy ones; does not
know what is computed.
"""

from __future__ import annotations

import os
import sys
import threading

import torch

# So low that steps, whose threads wait for each other, hardly feel it (`staging` in docs/bench.md).
# Lower would be slower for nobody's gain: who waits for the interpreter waits for whoever holds it,
# whatever its priority.
SIDE_NICENESS = 15


def set_thread_modes(num_threads: int) -> None:
    """Cores and floating point of the calling thread; before its first tensor operation."""
    torch.set_num_threads(num_threads)
    # Denormals make some passes many times slower on a CPU.
    torch.set_flush_denormal(True)


def set_side_modes() -> None:
    """Those of a thread whose work beside decoding can wait: one core, and little of a busy one.

    The priority is of the calling thread alone, which is a Linux way; elsewhere it stays.
    """
    set_thread_modes(1)
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SIDE_NICENESS)
