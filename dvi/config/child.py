"""How a process of ours is started, and how it ends with its parent.

Owns the command and one system call; does not start anything.
"""

from __future__ import annotations

import ctypes
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def module_command(module: str, *words: str) -> list[str]:
    """Run ``module`` with ``words``.

    Without -P Python looks for modules in the current directory first, where a user may have a
    folder ``dvi`` (the checkout itself, seen from its parent) or a file ``json.py``.
    """
    return [sys.executable, "-P", "-m", module, *words]


def signal_at_parents_death(number: int) -> None:
    """Have Linux send us this signal (0: none) when the thread that started us ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
