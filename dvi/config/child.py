"""How a process of ours is started: this Python, and nothing of the current directory.

Owns the command; does not start anything.
"""

from __future__ import annotations

import sys


def module_command(module: str, *words: str) -> list[str]:
    """Run ``module`` with ``words``.

    Without -P Python looks for modules in the current directory first, where a user may have a
    folder ``dvi`` (the checkout itself, seen from its parent) or a file ``json.py``.
    """
    return [sys.executable, "-P", "-m", module, *words]
