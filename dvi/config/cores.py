"""CPU cores of this process.

Owns the count; needs no torch.
"""

from __future__ import annotations

import os

from dvi.config.engine import ModelConfig


def num_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def decode_threads(config: ModelConfig) -> int:
    """CPU threads of the decode loop; 0 in the config is all that this process may use."""
    return config.num_threads or num_cores()
