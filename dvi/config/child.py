"""How a process of ours is started, what it keeps, and how it ends with its parent.

Owns command, environment and one system call; does not start anything.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import MutableMapping

# Of products in bfloat16 oneDNN compiles one for each row count, up to a megabyte, and it and its
# caller keep 1,024. Those of ragged batches hardly ever come again; what a decode pass uses fits.
_FEW_KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def module_command(module: str, *words: str) -> list[str]:
    """Run ``module`` with ``words``.

    Without -P Python looks for modules in the current directory first, where a user may have a
    folder ``dvi`` (the checkout itself, seen from its parent) or a file ``json.py``.
    """
    return [sys.executable, "-P", "-m", module, *words]


def keep_few_kernels(environment: MutableMapping[str, str]) -> None:
    """For a process that trains, before it imports torch; a user's own figures stay."""
    for name, capacity in _FEW_KERNELS.items():
        environment.setdefault(name, capacity)


def signal_at_parents_death(number: int) -> None:
    """Have Linux send us this signal (0: none) when the thread that started us ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
