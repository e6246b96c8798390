"""Entry of the console script `dvi` and of `python -m dvi`."""

from __future__ import annotations

import sys

from dvi.cli.main import report_uncaught, run, shows_tracebacks


def main() -> None:
    """Run one command and leave with its exit status."""
    if not shows_tracebacks():
        sys.excepthook = report_uncaught
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
