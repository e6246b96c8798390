"""Entry of ``python -m dvi.study``, which ``scripts/study.sh`` runs."""

from __future__ import annotations

import sys

from dvi.study.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
