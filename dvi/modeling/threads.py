"""Modes of the threads that compute.

Owns how many cores tensor operations of a thread take; does not know what is computed.
"""

from __future__ import annotations

import torch


def set_thread_modes(num_threads: int) -> None:
    """Cores and floating point of the calling thread; before its first tensor operation."""
    torch.set_num_threads(num_threads)
    # Denormals make some passes many times slower on a CPU.
    torch.set_flush_denormal(True)
