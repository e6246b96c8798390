"""``python -m dvi.demo.child WORDS``: becomes `dvi WORDS`, and ends when its parent does.

A demo that is killed with -9 cannot stop its server, which holds gigabytes; on Linux the kernel
then does it. Elsewhere the process lives on.
"""

from __future__ import annotations

import os
import signal
import sys

from dvi.config.child import module_command, signal_at_parents_death


def main() -> None:
    """Ask for SIGTERM at the parent's death and replace this process."""
    signal_at_parents_death(signal.SIGTERM)
    os.execv(sys.executable, module_command("dvi", *sys.argv[1:]))


if __name__ == "__main__":
    main()
